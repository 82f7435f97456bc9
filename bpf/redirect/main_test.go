package redirect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/hoststest"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"client": runClient, "proxy": runProxy, "load": runLoader})
}

// order is what a client is told to do, outcome what came of it.
type order struct {
	How   string // go, blocking, mapped, bound, device, marked, early, getsockopt
	To    string
	Times int // 0: once
}

type outcome struct {
	Peer, Local, Reply string
	Error              string
	Errno              syscall.Errno
	Nanoseconds        int64 // of all connects
	Wrong              int   // connects whose reply differed from the last one's
}

// runClient obeys orders, a JSON object a line.
func runClient([]string) error {
	in := json.NewDecoder(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(obey(o)); err != nil {
			return err
		}
	}
}

func obey(o order) outcome {
	if o.How == "getsockopt" {
		return askOften(o.Times)
	}
	var sum outcome
	for range max(o.Times, 1) {
		one := connectOnce(o)
		if sum.Reply != "" && one.Reply != sum.Reply {
			sum.Wrong++
		}
		one.Nanoseconds += sum.Nanoseconds
		one.Wrong = sum.Wrong
		sum = one
		if sum.Error != "" {
			break
		}
	}
	return sum
}

// askOften asks a socket for something that no program answers.
func askOften(times int) (r outcome) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	defer unix.Close(fd)
	start := time.Now()
	for range times {
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
			r.Error = err.Error()
		}
	}
	r.Nanoseconds = time.Since(start).Nanoseconds()
	return r
}

func connectOnce(o order) (r outcome) {
	failed := func(err error) outcome {
		r.Error = err.Error()
		errors.As(err, &r.Errno)
		return r
	}
	start := time.Now()
	conn, err := dial(o)
	r.Nanoseconds = time.Since(start).Nanoseconds()
	if err != nil {
		return failed(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return failed(err)
	}
	r.Peer, r.Local = conn.RemoteAddr().String(), conn.LocalAddr().String()
	if o.How == "early" { // sends and closes before it can have been accepted
		if _, err := io.WriteString(conn, "early\n"); err != nil {
			return failed(err)
		}
		return r
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return failed(err)
	}
	r.Reply = strings.TrimSpace(reply)
	return r
}

func dial(o order) (net.Conn, error) {
	to, err := netip.ParseAddrPort(o.To)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: 20 * time.Second}
	switch o.How {
	case "blocking", "mapped":
		return dialBlocking(to, o.How == "mapped")
	case "marked":
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, DefaultMark) })
			return errors.Join(err, failed)
		}
	case "mptcp":
		d.SetMultipathTCP(true)
	case "device":
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "eth0") })
			return errors.Join(err, failed)
		}
	case "bound":
		source, err := firstAddress(to.Addr().Is4())
		if err != nil {
			return nil, err
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return d.Dial("tcp", o.To)
}

// firstAddress is that of eth0.
func firstAddress(v4 bool) (netip.Addr, error) {
	eth, err := net.InterfaceByName("eth0")
	if err != nil {
		return netip.Addr{}, err
	}
	all, err := eth.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() == v4 {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("eth0 has no such address")
}

// dialBlocking connects by a blocking connect(), and with mapped an IPv4
// address through an IPv6 socket.
func dialBlocking(to netip.AddrPort, mapped bool) (net.Conn, error) {
	domain := unix.AF_INET
	var a unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port())}
	if mapped || to.Addr().Is6() {
		domain, a = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		a.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if err := unix.Connect(fd, a); err != nil {
		return nil, err
	}
	return net.FileConn(f) // asks for the peer's name
}

// runProxy listens as the agent would, gives up its privileges and says to
// each connection where it was meant to go. Its arguments are the delay before
// it accepts, and the mark.
func runProxy(args []string) error {
	delay, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	var listeners []net.Listener
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := listenMarked(address)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	const nobody = 65534
	if err := syscall.Setresgid(nobody, nobody, nobody); err != nil {
		return err
	}
	if err := syscall.Setresuid(nobody, nobody, nobody); err != nil {
		return err
	}
	fmt.Println(cookie, port(listeners[0]), port(listeners[1]))
	time.Sleep(delay)
	for _, l := range listeners {
		go answerAll(l)
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until the test ends
	return err
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func listenMarked(address string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, DefaultMark) })
		return errors.Join(err, failed)
	}}
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp", address)
}

func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// stdout is shared by connections.
var stdout sync.Mutex

func answerAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			to, err := askDestination(conn.(*net.TCPConn))
			if err == nil {
				var again string
				if again, err = askDestination(conn.(*net.TCPConn)); err == nil && again != to {
					err = fmt.Errorf("then %s", again)
				}
			}
			if err != nil {
				to += " error: " + err.Error()
			}
			fmt.Fprintf(conn, "proxy %s\n", to)
			if line, _ := bufio.NewReader(conn).ReadString('\n'); line != "" {
				stdout.Lock()
				defer stdout.Unlock()
				fmt.Printf("%s for %s\n", strings.TrimSpace(line), to)
			}
		}()
	}
}

// askDestination asks as programs do that stand behind netfilter.
func askDestination(conn *net.TCPConn) (to string, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	six := conn.LocalAddr().(*net.TCPAddr).IP.To4() == nil
	failed := raw.Control(func(fd uintptr) {
		if six {
			var a *unix.IPv6MTUInfo // begins with a sockaddr_in6
			if a, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, 80); err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(a.Addr.Addr), bigEndian(a.Addr.Port)).String()
			}
			return
		}
		var a *unix.IPv6Mreq // 16 bytes and a number, as large as a sockaddr_in
		if a, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, 80); err == nil {
			b := a.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])).String()
		}
	})
	return to, errors.Join(err, failed)
}

// runLoader attaches to the cgroup of its second argument, in the folder of
// its first, says so and waits.
func runLoader(args []string) error {
	r, err := Open(Options{Dir: args[0]})
	if err != nil {
		return err
	}
	if _, err := r.Attach(args[1], Policy{}); err != nil {
		return err
	}
	fmt.Println("attached")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
