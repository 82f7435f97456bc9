package redirect

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// openState makes a state in a BPF file system of the test's own.
func openState(t testing.TB) *Redirect {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	dir := filepath.Join(bpfFolder(t), "psidecar")
	r := require.Value(Open(Options{Dir: dir}))(t)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := Unload(dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// bpfFolder is an empty folder, on which Open mounts.
func bpfFolder(t testing.TB) string {
	t.Helper()
	parent := t.TempDir()
	t.Cleanup(func() {
		if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil && err != unix.EINVAL { // Unload did
			t.Error(err)
		}
	})
	return parent
}

// clientProcess connects as it is told.
type clientProcess struct{ *hoststest.Child }

func startClient(t testing.TB, h *hosts.Host, group string) clientProcess {
	t.Helper()
	return clientProcess{hoststest.Start(t, h, group, hoststest.Task("client"))}
}

func (c clientProcess) do(o order) (r outcome) {
	c.AskJSON(o, &r)
	return r
}

// startProxy runs a proxy without privileges on the host.
func startProxy(t testing.TB, r *Redirect, h *hosts.Host, group GroupID, delay string) (p *hoststest.Child, netns uint64) {
	t.Helper()
	sidecar := require.Value(h.Group("sidecar"))(t)
	require.NoError(t, r.AttachProxy(sidecar))
	p = hoststest.Start(t, h, "sidecar", hoststest.Task("proxy", delay))
	var ports Ports
	require.Value(fmt.Sscan(p.Line(), &netns, &ports.IPv4, &ports.IPv6))(t)
	require.NoError(t, r.SetListener(netns, group, ports))
	return p, netns
}

// attachJob redirects a cgroup of the host.
func attachJob(t testing.TB, r *Redirect, h *hosts.Host, name string, p Policy) GroupID {
	t.Helper()
	dir := require.Value(h.Group(name))(t)
	id := require.Value(r.Attach(dir, p))(t)
	return id
}

// serve listens on the host, for IPv4 and IPv6, and says "direct" to whoever
// comes.
func serve(t testing.TB, h *hosts.Host) (four, six, loop4, loop6 string) {
	t.Helper()
	var group sync.WaitGroup
	listen := func(host string) string {
		l := require.Value(h.Listen(t.Context(), "tcp", net.JoinHostPort(host, "0")))(t)
		t.Cleanup(func() { l.Close() })
		group.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, "direct", l.Addr())
				c.Close()
			}
		})
		return l.Addr().String()
	}
	t.Cleanup(group.Wait) // after the listeners are closed
	return listen(h.IPv4.String()), listen(h.IPv6.String()), listen("127.0.0.1"), listen("::1")
}

func counts(t testing.TB, r *Redirect) Counts {
	t.Helper()
	c := require.Value(r.Counts())(t)
	return c
}
