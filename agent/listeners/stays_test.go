package listeners

import (
	"log/slog"
	"testing"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy that asks whether the agent stays hears that it does, until the agent is
// about to end.
func TestStaysUntilTheAgentIsAboutToEnd(t *testing.T) {
	mine, proxys, err := handover.Pair()
	require.NoError(t, err)
	conn, proxy := handover.NewConn(mine), handover.NewConn(proxys)
	defer proxy.Close()
	defer conn.Close()
	l := &Listeners{leaving: make(chan struct{}), log: slog.Default()}
	ended := make(chan struct{})
	defer l.attended.Wait()
	defer close(ended)
	o := l.owners(conn, ended)
	for i, want := range []string{"", errEnds.Error()} {
		question := handover.Message{Kind: handover.Stays, Sequence: uint64(i)}
		if want != "" {
			close(l.leaving)
		}
		require.NoError(t, o.stays(question))
		m, _, err := proxy.Receive()
		require.NoError(t, err)
		if m.Kind != handover.Result || m.Sequence != question.Sequence || m.Error != want {
			t.Errorf("the answer is %+v, want %q", m, want)
		}
	}
}
