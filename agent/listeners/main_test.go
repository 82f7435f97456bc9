package listeners

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/test/hoststest"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"agent": runAgent, "proxy": runProxy, "client": runClient, "server": runServer})
}

const nobody = 65534

// runAgent reconciles with the processes that come as JSON, a list a line. Its
// arguments are the folder of pins, the socket, the grace and after what time a
// proxy hangs, if that is to be known.
func runAgent(args []string) error {
	grace, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	var hang time.Duration
	if len(args) > 3 {
		if hang, err = time.ParseDuration(args[3]); err != nil {
			return err
		}
	}
	r, err := redirect.Open(redirect.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := New(Options{Redirect: r, Socket: args[1], UID: nobody, Grace: grace, HangAfter: hang})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.Run(ctx, false) })
	fmt.Println("ready")
	go func() {
		in := json.NewDecoder(os.Stdin)
		for {
			var all []Process
			if in.Decode(&all) != nil {
				return
			}
			fmt.Println("done", strings.ReplaceAll(fmt.Sprint(l.Reconcile(all)), "\n", "; "))
		}
	}()
	return g.Wait()
}

// runProxy gives up its privileges and says to each connection which proxy it is
// and where the connection was going. Its arguments are the socket and its user,
// nobody where there is none. Lines on standard input, "CGROUP on" or "CGROUP off",
// set fail-closed; "owner NETNS ADDRESS" asks for the listener's cgroup, "closed" whether it
// failed closed when the proxy came.
func runProxy(args []string) error {
	uid := nobody
	if len(args) > 1 {
		var err error
		if uid, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	if err := errors.Join(syscall.Setresgid(uid, uid, uid), syscall.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var closed atomic.Bool // what the last listener said of its cgroup
	serve := func(ctx context.Context, l *handover.Listener) error {
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		closed.Store(l.Closed)
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return nil
			}
			go func() {
				defer conn.Close()
				to, err := original(conn)
				if err != nil {
					fmt.Fprintln(os.Stderr, "original destination:", err)
					return
				}
				fmt.Fprintln(conn, "proxy", os.Getpid(), l.Job, to)
			}()
		}
	}
	client := handover.NewClient(args[0], serve)
	var crowded atomic.Uint64
	client.Crowded(crowded.Load)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			number, state, _ := strings.Cut(in.Text(), " ")
			if number == "closed" {
				fmt.Println("closed", closed.Load())
				continue
			}
			if number == "owner" {
				fmt.Println(owner(ctx, client, state))
				continue
			}
			cgroup, err := strconv.ParseUint(number, 10, 64)
			switch {
			case err != nil:
			case state == "crowded":
				crowded.Store(cgroup)
			default:
				err = client.SetFailClosed(ctx, cgroup, state == "on")
			}
			fmt.Println("set", err)
		}
	}()
	return client.Run(ctx)
}

// owner asks for the cgroup of a listener; the words are a network namespace's
// inode and an address.
func owner(ctx context.Context, c *handover.Client, words string) string {
	number, at, _ := strings.Cut(words, " ")
	netns, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return err.Error()
	}
	cgroup, found, err := c.Owner(ctx, netns, netip.MustParseAddrPort(at))
	return fmt.Sprint(cgroup, found, err)
}

// runServer moves to the given cgroup, if any, listens, and prints its address.
func runServer(args []string) error {
	if len(args) > 0 {
		if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	_, err = l.Accept()
	return err
}

// original asks as any program behind a redirection does; IPv4 alone, see
// bpf/redirect for the other.
func original(conn *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return to, err
	}
	failed := raw.Control(func(fd uintptr) {
		var a *unix.IPv6Mreq // 16 bytes and a number, as large as a sockaddr_in
		if a, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
			b := a.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return to, errors.Join(err, failed)
}

// runClient connects to the given addresses, and prints the answers.
func runClient([]string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(ask(in.Text()))
	}
	return in.Err()
}

func ask(to string) string {
	conn, err := net.DialTimeout("tcp", to, 10*time.Second)
	if err != nil {
		return "error " + err.Error()
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "error " + err.Error()
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "error " + err.Error()
	}
	return strings.TrimSpace(reply)
}
