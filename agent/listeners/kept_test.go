package listeners

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/test/require"
)

// keeping is a proxy for which an agent holds connections: its process, and both ends
// of its connection to the agent.
type keeping struct {
	process *exec.Cmd
	agents  *handover.Conn
	proxys  *handover.Conn
	peer    *peer
}

func newKeeping(t *testing.T, k *kept) *keeping {
	t.Helper()
	mine, proxys, err := handover.Pair()
	require.NoError(t, err)
	c := &keeping{process: exec.Command("sleep", "1000"), agents: handover.NewConn(mine), proxys: handover.NewConn(proxys)}
	require.NoError(t, c.process.Start())
	pidfd := require.Value(unix.PidfdOpen(c.process.Process.Pid, 0))(t) // the socket's is this process
	c.peer = &peer{pid: int32(c.process.Process.Pid), pidfd: pidfd}
	t.Cleanup(func() {
		c.kill()
		c.peer.close()
		c.agents.Close()
		c.proxys.Close()
	})
	k.comes(c.agents, c.peer, true)
	return c
}

// kill ends the process, once.
func (c *keeping) kill() {
	if c.process.ProcessState == nil {
		_ = c.process.Process.Kill()
		_ = c.process.Wait()
	}
}

// connection returns a connection of the test's, which it closes, and what the agent is given of
// it: a duplicate, and a page.
func connection(t *testing.T) (conn *net.TCPConn, file, page *os.File) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	dialed := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	t.Cleanup(func() { dialed.Close() })
	conn = dialed.(*net.TCPConn)
	file = require.Value(conn.File())(t)
	page = require.Value(os.Open(os.DevNull))(t)
	return conn, file, page
}

// holdOne has the agent hold a connection of the proxy's.
func (c *keeping) holdOne(t *testing.T, k *kept, id uint64) {
	t.Helper()
	_, file, page := connection(t)
	require.NoError(t, k.hold(c.agents, id, []*os.File{file, page}))
}

// kinds are the next messages from the agent, up to AllKept.
func (c *keeping) kinds(t *testing.T) (all []string) {
	t.Helper()
	for {
		require.NoError(t, c.proxys.SetReadDeadline(time.Now().Add(time.Minute)))
		m, files, err := c.proxys.ReceiveAll()
		if err != nil {
			t.Fatalf("after %q: %v", all, err)
		}
		for _, f := range files {
			f.Close()
		}
		all = append(all, m.Kind)
		if m.Kind == handover.AllKept {
			return all
		}
	}
}

// settling has the agent end, and returns once it waits or has waited.
func settling(t *testing.T, k *kept, within time.Duration) <-chan bool {
	t.Helper()
	settled := make(chan bool, 1)
	go func() { settled <- k.awaitHandover(within) }()
	require.Eventually(t, "it waits, or has waited", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.changed != nil || len(settled) > 0
	})
	return settled
}

// An agent that ends while it holds connections that a proxy left, or is about to
// leave because it counts on the agent, waits for the next proxy and hands them over.
func TestSettleWaitsForTheNextProxy(t *testing.T) {
	k := &kept{most: 4}
	t.Cleanup(k.close)
	first := newKeeping(t, k)
	first.holdOne(t, k, 7)
	if got := first.kinds(t); len(got) != 1 {
		t.Fatalf("the first proxy is told %q", got)
	}
	k.rely(first.agents, true)
	settled := settling(t, k, time.Hour)
	if len(settled) > 0 {
		t.Fatal("it did not wait for a proxy that relies on it")
	}
	first.kill()
	k.leaves(first.agents, time.Hour)
	if held, _, _ := k.counts(); held != 1 || len(settled) > 0 {
		t.Fatalf("%d connections are held for the next proxy, ended %v", held, len(settled) > 0)
	}
	next := newKeeping(t, k)
	if got := next.kinds(t); len(got) != 2 || got[0] != handover.Kept {
		t.Errorf("the next proxy is told %q", got)
	}
	if !<-settled {
		t.Error("it gave up although the next proxy has come")
	}
}

// An agent that ends takes no more connections, whatever a proxy still sends it.
func TestHoldAfterTheEnd(t *testing.T) {
	k := &kept{most: 4}
	proxy := newKeeping(t, k)
	k.close()
	proxy.holdOne(t, k, 7)
	if held, _, _ := k.counts(); held != 0 {
		t.Errorf("%d connections are held", held)
	}
}

// descriptors returns how many of this process's descriptors are of a socket.
func descriptors(t *testing.T, conn *net.TCPConn) (n int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	var socket unix.Stat_t
	if failed := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &socket) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	all := require.Value(os.ReadDir("/proc/self/fd"))(t)
	for _, fd := range all {
		var s unix.Stat_t
		if unix.Stat("/proc/self/fd/"+fd.Name(), &s) == nil && s.Dev == socket.Dev && s.Ino == socket.Ino {
			n++
		}
	}
	return n
}

// Of a connection that cannot be held no descriptor stays: its peer would never see its
// end.
func TestWhatCannotBeHeldIsClosed(t *testing.T) {
	k := &kept{most: 4}
	t.Cleanup(k.close)
	proxy := newKeeping(t, k)
	conn, file, page := connection(t)
	page.Close() // it cannot be duplicated
	if err := k.hold(proxy.agents, 7, []*os.File{file, page}); err == nil {
		t.Error("a connection without a page is held")
	}
	if n := descriptors(t, conn); n != 1 {
		t.Errorf("the connection has %d descriptors, want its own", n)
	}
}

// It does not wait for proxies that live on, nor any longer than connections are held.
func TestSettleDoesNotWait(t *testing.T) {
	k := &kept{most: 4}
	t.Cleanup(k.close)
	proxy := newKeeping(t, k)
	proxy.holdOne(t, k, 7)
	if !k.awaitHandover(time.Hour) {
		t.Error("it waited for a proxy that lives on")
	}
	k.rely(proxy.agents, true)
	if k.awaitHandover(time.Nanosecond) {
		t.Error("what a proxy relies on is settled while it is there")
	}
	settled := settling(t, k, time.Hour)
	k.rely(proxy.agents, false)
	if !<-settled {
		t.Error("it gave up a proxy that does not rely on it any more")
	}
	proxy.kill()
	k.leaves(proxy.agents, time.Hour)
	settled = settling(t, k, time.Hour)
	k.giveUp()
	if !<-settled {
		t.Error("it gave up what is given up")
	}
	if _, _, lost := k.counts(); lost != 1 {
		t.Errorf("%d connections are counted as lost, want 1", lost)
	}
}
