package listeners

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
)

// A proxy is told who listens at a port of the job's network namespace: a
// process of the job's cgroup or below it, which it is waited for to be found;
// one of another cgroup; nobody.
func TestOwner(t *testing.T) {
	g := newGround(t)
	var ns syscall.Stat_t
	if err := syscall.Stat(g.process.Netns, &ns); err != nil {
		t.Fatal(err)
	}
	id, err := redirect.ID(g.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	other, err := g.job.Group("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(g.cgroup, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
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

	// The second job is found while the question is under way.
	second := g.process
	second.Cgroup = other
	otherID, err := redirect.ID(other)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan string)
	go func() { answer <- proxy.Ask(fmt.Sprintf("owner %d %s", ns.Ino, foreign)) }()
	g.want(agent, g.process, second)
	if got, want := <-answer, fmt.Sprint(otherID, " true <nil>"); got != want {
		t.Errorf("of a job that was found meanwhile: %s, want %s", got, want)
	}
}
