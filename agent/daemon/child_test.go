package daemon

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
// writes a message chunk by chunk, and looks for what has come in between. When it
// receives the end it drops a message that it has partly written, and connects again.
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

// again drops the rest of a message, and reconnects.
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
