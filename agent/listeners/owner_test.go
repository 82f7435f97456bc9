package listeners

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy learns the cgroup that listens at a port of the job's network namespace:
// a process of the job's cgroup or below it, which it is waited for to be found;
// one of another cgroup; nobody.
func TestOwnerOfAPortIsTold(t *testing.T) {
	g := newGround(t)
	var ns syscall.Stat_t
	require.NoError(t, syscall.Stat(g.process.Netns, &ns))
	id := require.Value(redirect.ID(g.cgroup))(t)
	other := require.Value(g.job.Group("other"))(t)
	require.NoError(t, os.Mkdir(filepath.Join(g.cgroup, "inner"), 0o755))
	agent := g.startAgent("1m")
	proxy := g.startProxy()
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	g.want(agent, g.process)
	g.until(client, g.through(proxy))
	address := func(group string, moves ...string) string {
		server := hoststest.Start(t, g.job, group, hoststest.Task("server", moves...))
		return g.job.IPv4.String() + ":" + server.Line()
	}
	expect := func(what, at string, want string) {
		t.Helper()
		if got := proxy.Ask(fmt.Sprintf("owner %d %s", ns.Ino, at)); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	mine := fmt.Sprint(id, " true <nil>")
	expect("a process of the job", address("job"), mine)
	expect("one in a group below", address("job", filepath.Join(g.cgroup, "inner")), mine)
	foreign := address("other")
	expect("one of another group", foreign, "0 true <nil>")
	expect("nobody", g.job.IPv4.String()+":1", "0 false <nil>")
	expect("at an address that nobody has bound", "127.0.0.9"+foreign[len(g.job.IPv4.String()):], "0 true <nil>")

	// The second job is found while the question is under way, at a socket that
	// was not waited for before.
	unasked := address("other")
	second := g.process
	second.Cgroup = other
	otherID := require.Value(redirect.ID(other))(t)
	answer := make(chan string)
	go func() { answer <- proxy.Ask(fmt.Sprintf("owner %d %s", ns.Ino, unasked)) }()
	g.want(agent, g.process, second)
	if got, want := <-answer, fmt.Sprint(otherID, " true <nil>"); got != want {
		t.Errorf("of a job that was found meanwhile: %s, want %s", got, want)
	}
	expect("another's that is a job's by now", foreign, fmt.Sprint(otherID, " true <nil>"))
}

// A socket of no job's is waited for once; another at the same address again.
func TestStrangers(t *testing.T) {
	var s strangers
	of := func(cookies ...uint64) (all []discover.ListeningSocket) {
		for _, c := range cookies {
			all = append(all, discover.ListeningSocket{Cookie: c})
		}
		return all
	}
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		after time.Duration
		asked []discover.ListeningSocket
		want  time.Duration
	}{
		{0, of(1), 0},
		{5 * time.Second, of(1), 0},
		{6 * time.Second, of(2), 6 * time.Second},
		{7 * time.Second, of(1, 2), 6 * time.Second},
		{8 * time.Second, of(2, 3, 1), 8 * time.Second},
		{9 * time.Second, of(3), 8 * time.Second},
	} {
		if got := s.since(c.asked, began.Add(c.after)).Sub(began); got != c.want {
			t.Errorf("after %v, %v: asked since %v, want %v", c.after, c.asked, got, c.want)
		}
	}
	for i := range uint64(3 * maxStrangers) {
		s.since(of(i), began)
	}
	if len(s.asked) > maxStrangers {
		t.Errorf("%d sockets are remembered, want at most %d", len(s.asked), maxStrangers)
	}
}
