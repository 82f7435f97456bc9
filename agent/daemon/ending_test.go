package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"

	"github.com/psidecar/psidecar/test/require"
)

// receiver takes the messages of a child, one connection after the other.
type receiver struct {
	net.Listener
	*exec.Cmd
	ask   io.WriteCloser
	conns chan net.Conn
}

func begin(t *testing.T, mode string) *receiver {
	t.Helper()
	require.Root(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	r := &receiver{Listener: l, Cmd: exec.Command("/proc/self/exe"), conns: make(chan net.Conn, 1024)}
	r.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childVariable, l.Addr().(*net.TCPAddr).Port), childVariable+"_MODE="+mode)
	r.Stderr = os.Stderr
	if r.ask, err = r.StdinPipe(); err == nil {
		err = r.Start()
	}
	require.NoError(t, err)
	t.Cleanup(func() { r.Process.Kill(); r.Wait() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.conns <- c
		}
	}()
	return r
}

// socket is the child's one socket.
func (r *receiver) socket(t *testing.T) (inode uint32, ok bool) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", r.Process.Pid)
	files := require.Value(os.ReadDir(dir))(t)
	for _, f := range files {
		link, _ := os.Readlink(filepath.Join(dir, f.Name()))
		if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")); err == nil {
			return uint32(n), true
		}
	}
	return 0, false
}

// try ends the child's connection.
func (r *receiver) try(t *testing.T) error {
	inode, ok := r.socket(t)
	if !ok {
		return refusef(ReasonBusy, "between two connections")
	}
	c := &closer{proc: discover.OpenProc("/proc"), pid: r.Process.Pid, inode: inode}
	if err := c.begin(); err != nil {
		return err
	}
	e := ending{proc: c.proc, pid: c.pid, inode: inode, loop: c.loop}
	if err := e.run(); err != nil {
		c.drop()
		return err
	}
	return c.await(t.Context())
}

// Each of many messages arrives whole, and once, though the connections on which they
// go are ended over and over: none is ended with a part of one written, nor with one
// that the sender was notified of and has not written.
func TestNothingIsLost(t *testing.T) {
	r := begin(t, "always")
	var next uint64
	const times = 150
	ended := 0
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() { done <- r.receive(&next, stop) }()
	for ended < times {
		err := r.try(t)
		var why *refusal
		switch {
		case err == nil:
			ended++
		case errors.As(err, &why) && (why.why == ReasonBusy || why.why == ReasonLoop): // or between two connections
		default:
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("after %d connections: %v", ended, err)
		default:
		}
	}
	close(stop)
	require.NoError(t, <-done)
	t.Logf("%d messages on %d connections", next, ended+1)
}

// receive reads messages from one connection after the other.
func (r *receiver) receive(next *uint64, stop chan struct{}) error {
	b := make([]byte, chunk)
	for {
		var c net.Conn
		select {
		case c = <-r.conns:
		case <-stop:
			return nil
		}
		for part := 0; ; part = (part + 1) % chunks {
			_, err := io.ReadFull(c, b)
			if errors.Is(err, io.EOF) && part == 0 {
				break
			}
			if err != nil {
				return fmt.Errorf("after %d chunks of message %d: %w", part, *next, err)
			}
			if part == 0 {
				*next++
			}
			if got := binary.LittleEndian.Uint64(b); got != *next {
				return fmt.Errorf("message %d, want %d", got, *next)
			}
			select {
			case <-stop:
				return nil
			default:
			}
		}
		c.Close()
	}
}

// A connection is not ended while bytes wait in its sender, though the thread waits,
// too; and it is once its peer has read them.
func TestBytesInTheSocketKeepIt(t *testing.T) {
	r := begin(t, "asked")
	c := <-r.conns
	defer c.Close()
	require.Value(r.ask.Write(make([]byte, 1000)))(t)
	ends := discover.Ends{Local: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Peer: c.LocalAddr().(*net.TCPAddr).AddrPort()}
	require.Eventually(t, "the sender's buffer is full", func() bool {
		all, err := discover.Connections("/proc/self/ns/net")
		return err == nil && all[ends].Unsent > 0 && all[ends].ZeroWindow
	})
	require.Eventually(t, "its thread is found asleep for want of room", func() bool {
		var why *refusal
		err := r.try(t)
		if !errors.As(err, &why) || why.why != ReasonBusy {
			t.Fatalf("the attempt ends with %v", err)
		}
		return strings.Contains(why.Error(), "waits to write")
	})
	go io.Copy(io.Discard, c)
	require.Eventually(t, "it is ended", func() bool { return r.try(t) == nil })
}

// tell shuts nothing down where something has come, or the thread is woken.
func TestTellShutsNothingDownTooLate(t *testing.T) {
	for _, name := range []string{"at rest", "unread", "woken"} {
		t.Run(name, func(t *testing.T) {
			pair := require.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
			defer unix.Close(pair[0])
			defer unix.Close(pair[1])
			signal := require.Value(unix.Eventfd(0, unix.EFD_NONBLOCK))(t)
			defer unix.Close(signal)
			e := ending{socket: pair[0], signals: []int{signal}, loop: loop{signals: []watched{{number: signal}}}}
			var err error
			switch name {
			case "unread":
				_, err = unix.Write(pair[1], []byte{1})
			case "woken":
				_, err = unix.Write(signal, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			}
			require.NoError(t, err)
			err = e.shutRead()
			var why *refusal
			if name != "at rest" && (!errors.As(err, &why) || why.why != ReasonBusy) || name == "at rest" && err != nil {
				t.Errorf("it says %v", err)
			}
			_, err = unix.Write(pair[1], []byte{1}) // fails once the other end reads no more
			if ended := errors.Is(err, unix.EPIPE); ended != (name == "at rest") {
				t.Errorf("shut down: %v", ended)
			}
		})
	}
}

// A thread that is woken while it receives the end sees the end first.
func TestToldBeforeItIsWoken(t *testing.T) {
	var files [4]int // a signal, a connection's ends, an epoll
	var err error
	files[0] = require.Value(unix.Eventfd(0, unix.EFD_NONBLOCK))(t)
	pair := require.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	files[1], files[2] = pair[0], pair[1]
	files[3] = require.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	for i, f := range files {
		defer unix.Close(f)
		if i < 2 {
			err = errors.Join(err, unix.EpollCtl(files[3], unix.EPOLL_CTL_ADD, f, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f)}))
		}
	}
	require.NoError(t, err)
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		mine, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, files[3]+1)
		if err != nil {
			return err
		}
		e := ending{socket: files[1], epoll: files[3], signals: []int{mine}, loop: loop{signals: []watched{{files[0], unix.EPOLLIN, uint64(files[0])}}}}
		e.shut = func(socket int) error {
			_, err := unix.Write(files[0], []byte{1, 0, 0, 0, 0, 0, 0, 0})
			return errors.Join(err, unix.Shutdown(socket, unix.SHUT_RD))
		}
		return e.shutRead()
	})
	require.NoError(t, err)
	var events [4]unix.EpollEvent
	n, err := unix.EpollWait(files[3], events[:], 0)
	if err != nil || n != 2 || int(events[0].Fd) != files[1] || int(events[1].Fd) != files[0] {
		t.Errorf("%d events, of %d and %d, %v; want the connection's, %d, then the signal's, %d", n, events[0].Fd, events[1].Fd, err, files[1], files[0])
	}
}
