// Package proxy_test measures psidecar's proxies from outside, as processes,
// beside haproxy and no proxy at all: the same bytes, in the same run, with two
// proxies in the path.
package proxy_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// The two hosts are two loopback addresses.
const (
	nearHost = "127.0.0.1"
	farHost  = "127.0.0.2"
)

// freeAddr returns an address at which nobody listens at the moment.
func freeAddr(t testing.TB, host string) string {
	t.Helper()
	l := require.Value(net.Listen("tcp", host+":0"))(t)
	defer l.Close()
	return l.Addr().String()
}

// process runs a program until the test ends.
func process(t testing.TB, name string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// listening waits until somebody takes connections at addr.
func listening(t testing.TB, addr string) {
	t.Helper()
	require.Await(t, "somebody listens at "+addr, func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// psidecars starts a proxy on each host and returns the address that leads to
// destination through both.
func psidecars(t testing.TB, destination string) string {
	in, _ := psidecarsWith(t, destination)
	return in
}

// psidecarsWith also returns their process ids, the one at the destination
// first.
func psidecarsWith(t testing.TB, destination string) (in string, pids []int) {
	t.Helper()
	bin := hoststest.BuildJob(t, "cmd/psidecar")
	in, mesh := freeAddr(t, nearHost), freeAddr(t, farHost)
	_, port, err := net.SplitHostPort(mesh)
	require.NoError(t, err)
	common := []string{"proxy", "--mesh-port", port, "--http", "", "--grace", "0s", "--log-level", "error"}
	pids = append(pids, process(t, bin, append(common, "--mesh-listen", mesh, "--mesh-ports", "any")...))
	listening(t, mesh)
	pids = append(pids, process(t, bin, append(common, "--mesh-listen", net.JoinHostPort(nearHost, port), "--forward", in+"="+destination)...))
	listening(t, in)
	return in, pids
}

// haproxies does the same with haproxy, in TCP mode, splicing.
func haproxies(t testing.TB, destination string) string {
	t.Helper()
	bin := require.Program(t, "haproxy")
	in, between := freeAddr(t, nearHost), freeAddr(t, farHost)
	for _, hop := range [][2]string{{between, destination}, {in, between}} {
		config := filepath.Join(t.TempDir(), "haproxy.cfg")
		text := haproxyDefaults + haproxyHop(0, hop[0], hop[1])
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		process(t, bin, "-db", "-q", "-f", config)
		listening(t, hop[0])
	}
	return in
}

// haproxyDefaults have it splice in TCP mode.
const haproxyDefaults = `global
  maxconn 2000
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 1h
  timeout server 1h
`

func haproxyHop(i int, at, to string) string {
	return fmt.Sprintf("listen hop%d\n  bind %s\n  server next %s\n", i, at, to)
}

func direct(_ testing.TB, destination string) string { return destination }

// ways are what can lie between two processes.
var ways = []struct {
	name string
	open func(t testing.TB, destination string) string
}{{"direct", direct}, {"haproxy", haproxies}, {"psidecar", psidecars}}

// serve calls handle for each connection, until the test ends.
func serve(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	l := require.Value(net.Listen("tcp", farHost+":0"))(t)
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			running.Go(func() { handle(c.(*net.TCPConn)); c.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String()
}

func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c := require.Value(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// discard reads all there is, without looking at it, and then ends the
// connection.
func discard(c *net.TCPConn) {
	buf := make([]byte, 1<<20)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}
