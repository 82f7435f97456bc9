package adopt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/procfs"
	"github.com/psidecar/psidecar/agent/sockdiag"
	"github.com/psidecar/psidecar/test/require"
)

const childVariable = "ADOPT_TEST_CHILD"

func TestMain(m *testing.M) {
	if to := os.Getenv(childVariable); to != "" {
		fmt.Fprintln(os.Stderr, child(to, os.Getenv(childVariable+"_MODE")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A child's messages: chunks of chunk bytes, the first of which begins with the
// message's number.
const (
	chunk  = 8 << 10
	chunks = 5
)

// sender is a node's thread for connections, as libzmq has it: woken by an eventfd, it
// writes a message chunk by chunk, and looks for what has come in between. Told the end
// it drops a message of which it has written a part, and connects again.
type sender struct {
	to            unix.Sockaddr
	epoll, signal int
	socket        int
	number        uint64 // of the message that is written next, or now
	left          int    // chunks of it

	mu      sync.Mutex // guards waiting
	waiting int
}

func child(to, mode string) error {
	runtime.LockOSThread()
	port, err := strconv.Atoi(to)
	if err != nil {
		return err
	}
	s := &sender{to: &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.signal, err = unix.Eventfd(0, unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, s.signal, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.signal)}); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	go s.produce(mode)
	return s.loop()
}

// produce has messages sent: now and then, or as fast as they go.
func (s *sender) produce(mode string) {
	for in := bufio.NewReader(os.Stdin); ; {
		switch mode {
		case "asked":
			if _, err := in.ReadByte(); err != nil {
				os.Exit(0)
			}
		default:
			time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		}
		s.mu.Lock()
		s.waiting++
		s.mu.Unlock()
		unix.Write(s.signal, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (s *sender) connect() (err error) {
	if s.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err := errors.Join(unix.Connect(s.socket, s.to), unix.SetNonblock(s.socket, true)); err != nil {
		return err
	}
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, s.socket, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.socket)})
}

func (s *sender) watch(events uint32) {
	unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, s.socket, &unix.EpollEvent{Events: events, Fd: int32(s.socket)})
}

func (s *sender) loop() error {
	var events [8]unix.EpollEvent
	for {
		n, err := unix.EpollWait(s.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		socket := s.socket
		for _, e := range events[:max(n, 0)] {
			switch {
			case int(e.Fd) == s.signal:
				unix.Read(s.signal, make([]byte, 8))
				if s.left == 0 {
					s.write()
				}
			case int(e.Fd) != socket || s.socket != socket:
			default:
				if e.Events&unix.EPOLLOUT != 0 {
					s.write()
				}
				if n, _ := unix.Read(s.socket, make([]byte, 10)); e.Events&unix.EPOLLIN != 0 && n == 0 {
					if err := s.again(); err != nil {
						return err
					}
				}
			}
		}
	}
}

// again drops what is left of a message, and connects anew.
func (s *sender) again() error {
	unix.Close(s.socket)
	s.left = 0
	if err := s.connect(); err != nil {
		return err
	}
	s.write()
	return nil
}

// write writes a chunk.
func (s *sender) write() {
	if s.left == 0 {
		s.mu.Lock()
		none := s.waiting == 0
		if !none {
			s.waiting--
		}
		s.mu.Unlock()
		if none {
			s.watch(unix.EPOLLIN)
			return
		}
		s.number++
		s.left = chunks
	}
	b := make([]byte, chunk)
	binary.LittleEndian.PutUint64(b, s.number)
	if n, err := unix.Write(s.socket, b); err == nil && n == chunk {
		s.left--
	}
	s.watch(unix.EPOLLIN | unix.EPOLLOUT)
}

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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &receiver{Listener: l, Cmd: exec.Command("/proc/self/exe"), conns: make(chan net.Conn, 1024)}
	r.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childVariable, l.Addr().(*net.TCPAddr).Port), childVariable+"_MODE="+mode)
	r.Stderr = os.Stderr
	if r.ask, err = r.StdinPipe(); err == nil {
		err = r.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
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
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
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
		return refusef(Busy, "between two connections")
	}
	c := &closer{proc: procfs.Open("/proc"), pid: r.Process.Pid, inode: inode}
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
// that the sender was told of and has not written.
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
		case errors.As(err, &why) && (why.why == Busy || why.why == Loop): // or between two connections
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
	if err := <-done; err != nil {
		t.Fatal(err)
	}
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
	if _, err := r.ask.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	ends := sockdiag.Ends{Local: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Peer: c.LocalAddr().(*net.TCPAddr).AddrPort()}
	await(t, "the sender's buffer to be full", func() bool {
		all, err := sockdiag.Connections("/proc/self/ns/net")
		return err == nil && all[ends].Unsent > 0 && all[ends].ZeroWindow
	})
	await(t, "its thread to be found asleep for want of room", func() bool {
		var why *refusal
		err := r.try(t)
		if !errors.As(err, &why) || why.why != Busy {
			t.Fatalf("the attempt ends with %v", err)
		}
		return strings.Contains(why.Error(), "waits to write")
	})
	go io.Copy(io.Discard, c)
	await(t, "it to be ended", func() bool { return r.try(t) == nil })
}

// tell shuts nothing down where something has come, or the thread is woken.
func TestTell(t *testing.T) {
	for _, name := range []string{"at rest", "unread", "woken"} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[0])
			defer unix.Close(pair[1])
			signal, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(signal)
			e := ending{socket: pair[0], signals: []int{signal}, loop: loop{signals: []watched{{number: signal}}}}
			switch name {
			case "unread":
				_, err = unix.Write(pair[1], []byte{1})
			case "woken":
				_, err = unix.Write(signal, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			}
			if err != nil {
				t.Fatal(err)
			}
			err = e.tell()
			var why *refusal
			if name != "at rest" && (!errors.As(err, &why) || why.why != Busy) || name == "at rest" && err != nil {
				t.Errorf("it says %v", err)
			}
			_, err = unix.Write(pair[1], []byte{1}) // fails once the other end reads no more
			if ended := errors.Is(err, unix.EPIPE); ended != (name == "at rest") {
				t.Errorf("shut down: %v", ended)
			}
		})
	}
}

// A thread that is woken while it is told the end hears of the end first.
func TestToldBeforeItIsWoken(t *testing.T) {
	var files [4]int // a signal, a connection's ends, an epoll
	var err error
	if files[0], err = unix.Eventfd(0, unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	files[1], files[2] = pair[0], pair[1]
	if files[3], err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		defer unix.Close(f)
		if i < 2 {
			err = errors.Join(err, unix.EpollCtl(files[3], unix.EPOLL_CTL_ADD, f, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f)}))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
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
		return e.tell()
	})
	if err != nil {
		t.Fatal(err)
	}
	var events [4]unix.EpollEvent
	n, err := unix.EpollWait(files[3], events[:], 0)
	if err != nil || n != 2 || int(events[0].Fd) != files[1] || int(events[1].Fd) != files[0] {
		t.Errorf("%d events, of %d and %d, %v; want the connection's, %d, then the signal's, %d", n, events[0].Fd, events[1].Fd, err, files[1], files[0])
	}
}

// await waits for a condition.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}
