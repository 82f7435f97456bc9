package faults

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

const relayPort = 7000

// killedRelay is hosts on each of which haproxy carries what the job's processes
// connect to. Both are killed, so that all connections between hosts break.
func killedRelay(t *testing.T) breakable {
	t.Helper()
	build(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	bpffs, dir := mountBPF(t), folder(t)
	relay := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(relay, []byte(`
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen all
  bind fd@3
  server there 0.0.0.0:0
`), 0o644); err != nil {
		t.Fatal(err)
	}
	var services []*service
	for _, h := range n.Hosts() {
		redirectTo(t, h, filepath.Join(bpffs, h.Name))
		s := &service{Service: hoststest.Service{Group: "relay", Host: h, Command: func() (*exec.Cmd, error) {
			return hoststest.Task("relay", require.Program(t, "haproxy"), relay), nil
		}}}
		s.run(t)
		t.Cleanup(func() { s.StayAway(false); s.stop(t) })
		services = append(services, s)
	}
	b := breakable{hosts: n.Hosts(), mend: func() {}}
	b.cut = func() {
		for _, s := range services {
			s.kill()
		}
	}
	return b
}

// redirectTo has what the job's processes on a host connect to redirected to the
// relay's port.
func redirectTo(t *testing.T, h *hosts.Host, pins string) {
	t.Helper()
	r := require.Value(redirect.Open(redirect.Options{Dir: pins}))(t)
	t.Cleanup(func() {
		r.Close()
		if _, err := redirect.Unload(pins); err != nil {
			t.Error(err)
		}
	})
	job, err1 := h.Group("job")
	relay, err2 := h.Group("relay")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	id := require.Value(r.Attach(job, redirect.Policy{}))(t)
	require.NoError(t, r.AttachProxy(relay))
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			return err
		}
		return r.SetListener(cookie, id, redirect.Ports{IPv4: relayPort})
	})
	require.NoError(t, err)
}

// relayTask opens the listener that connects are redirected to and becomes haproxy,
// which serves it.
func relayTask(args []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte(net.IPv4(127, 0, 0, 1).To4())), relayPort)
	for _, err := range []error{
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, redirect.DefaultMark),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}),
		unix.Listen(fd, 1024),
		unix.Dup3(fd, 3, 0),
	} {
		if err != nil {
			return fmt.Errorf("listening at %s: %w", at, err)
		}
	}
	return syscall.Exec(args[0], []string{args[0], "-f", args[1], "-db"}, os.Environ())
}
