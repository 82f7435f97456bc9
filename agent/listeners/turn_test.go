package listeners

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/test/require"
)

// waiting has a proxy wait for its turn, and returns its end and what comes of it.
func waiting(t *testing.T, l *Listeners) (proxy *handover.Conn, ended chan error) {
	t.Helper()
	mine, proxys, err := handover.Pair()
	require.NoError(t, err)
	proxy, ended = handover.NewConn(proxys), make(chan error, 1)
	t.Cleanup(func() { proxy.Close() })
	go func() { ended <- l.awaitTurn(handover.NewConn(mine), &unix.Ucred{Pid: 1}) }()
	if m, _, err := proxy.Receive(); err != nil || m.Kind != handover.Hello || !m.Turns {
		t.Fatalf("the agent says %+v, %v", m, err)
	}
	return proxy, ended
}

func newTurns() *Listeners {
	return &Listeners{over: make(chan struct{}), proxies: map[*handover.Conn]bool{}, yields: map[*handover.Conn]bool{}, log: slog.Default()}
}

// A proxy that waits has the one that is there end, and begins when that has gone.
func TestTurn(t *testing.T) {
	mine, proxys, err := handover.Pair()
	require.NoError(t, err)
	before, there := handover.NewConn(mine), handover.NewConn(proxys)
	defer before.Close()
	defer there.Close()
	l := newTurns()
	l.proxies[before], l.yields[before] = true, true
	next, ended := waiting(t, l)
	if m, _, err := there.Receive(); err != nil || m.Kind != handover.Yield {
		t.Fatalf("the proxy that is there hears %+v, %v", m, err)
	}
	l.mu.Lock()
	select {
	case err := <-ended:
		t.Errorf("it begins while the other is there: %v", err)
	default:
	}
	delete(l.proxies, before)
	l.giveTurn()
	l.mu.Unlock()
	if m, _, err := next.Receive(); err != nil || m.Kind != handover.Turn {
		t.Errorf("the proxy that waits hears %+v, %v", m, err)
	}
	if err := <-ended; err != nil || l.next != nil {
		t.Errorf("%v; %v waits", err, l.next)
	}
}

// Where no proxy is there one that waits begins at once; of two that wait the second
// does; and none keeps an agent from its end, nor stays known when it has hung up.
func TestTurns(t *testing.T) {
	l := newTurns()
	alone, ended := waiting(t, l)
	if m, _, err := alone.Receive(); err != nil || m.Kind != handover.Turn {
		t.Errorf("a proxy that is alone hears %+v, %v", m, err)
	}
	<-ended
	other := new(handover.Conn)
	l.proxies[other] = true // one that does not yield is not asked to
	first, firstEnded := waiting(t, l)
	second, secondEnded := waiting(t, l)
	if m, _, err := first.Receive(); err != nil || m.Kind != handover.Refused || !strings.Contains(m.Error, errSuperseded.Error()) {
		t.Errorf("the first of two hears %+v, %v", m, err)
	}
	if err := <-firstEnded; !errors.Is(err, errSuperseded) {
		t.Errorf("the first of two: %v", err)
	}
	second.Close()
	if err := <-secondEnded; err != nil || l.next != nil {
		t.Errorf("one that has hung up: %v; %v waits", err, l.next)
	}
	third, thirdEnded := waiting(t, l)
	close(l.over)
	if _, _, err := third.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the agent ends: %v", err)
	}
	<-thirdEnded
}
