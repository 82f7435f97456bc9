package van

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t testing.TB) net.Listener {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func freePort(t testing.TB) int {
	t.Helper()
	port := require.Value(hosts.FreePort("127.0.0.1"))(t)
	return port
}

func testConfig(role pslite.Role, port, servers, workers int) Config {
	return Config{Role: role, Servers: servers, Workers: workers, Root: "127.0.0.1", RootPort: port, NodeHost: "127.0.0.1",
		Patience: 30 * time.Second, LostAfter: 5 * time.Second}
}

func TestAddressInUse(t *testing.T) {
	port := listen(t).Addr().(*net.TCPAddr).Port
	for variable, c := range map[string]Config{
		"DMLC_PS_ROOT_PORT": testConfig(pslite.Scheduler, port, 1, 1),
		"PORT":              func() Config { c := testConfig(pslite.Worker, 1, 1, 1); c.Port = port; return c }(),
	} {
		_, err := Start(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), variable) || !strings.Contains(err.Error(), strconv.Itoa(port)) {
			t.Errorf("%s: error %v", variable, err)
		}
	}
}

func TestInterface(t *testing.T) {
	c := testConfig(pslite.Worker, 1, 1, 1)
	c.NodeHost, c.Interface = "", "no-such-link"
	var e *EnvironmentError
	if _, err := Start(t.Context(), c); !errors.As(err, &e) || e.Name != "DMLC_INTERFACE" {
		t.Errorf("error %v", err)
	}
	c.Interface = "lo"
	if host, err := c.ownHost(); err != nil || host != "127.0.0.1" {
		t.Errorf("address of lo: %s, %v", host, err)
	}
	c.Interface, c.Root = "", "::1"
	if host, err := c.ownHost(); err == nil && host != "::1" {
		t.Errorf("address that leads to ::1: %s", host)
	}
}

// A scheduler's address where something else answers must end in an error
// that says so, and soon.
func TestForeignScheduler(t *testing.T) {
	for want, greeting := range map[string]string{
		"another protocol":        "SSH-2.0-OpenSSH_9.2\r\n",
		"has not answered in Zer": "", // as a web server, which waits for a line's end
	} {
		l := listen(t)
		var served errgroup.Group
		served.Go(func() error {
			for {
				c, err := l.Accept()
				if err != nil {
					return nil
				}
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
			}
		})
		c := testConfig(pslite.Worker, l.Addr().(*net.TCPAddr).Port, 1, 1)
		if greeting == "" { // the other is noticed at once
			c.Patience = 500 * time.Millisecond
		}
		_, err := Start(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "DMLC_PS_ROOT_URI") {
			t.Errorf("%q: error %v", greeting, err)
		}
		l.Close()
		_ = served.Wait()
	}
}

func TestNoScheduler(t *testing.T) {
	c := testConfig(pslite.Server, freePort(t), 1, 1)
	c.Patience = 300 * time.Millisecond
	_, err := Start(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error %v", err)
	}
}

// startAll starts a scheduler, servers and workers.
func startAll(t *testing.T, ctx context.Context, servers, workers int, change func(*Config)) []*Van {
	t.Helper()
	port := freePort(t)
	vans := make([]*Van, 1+servers+workers)
	var group errgroup.Group
	for i := range vans {
		group.Go(func() error {
			role := pslite.Worker
			if i == 0 {
				role = pslite.Scheduler
			} else if i <= servers {
				role = pslite.Server
			}
			c := testConfig(role, port, servers, workers)
			if change != nil {
				change(&c)
			}
			v, err := Start(ctx, c)
			vans[i] = v
			return err
		})
	}
	require.NoError(t, group.Wait())
	return vans
}

func finalizeAll(t *testing.T, vans []*Van) {
	t.Helper()
	var group errgroup.Group
	for _, v := range vans {
		group.Go(func() error { return errors.Join(v.AwaitEnd(t.Context()), v.Stop(t.Context())) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// Strangers who talk nonsense to a node are refused and counted; the job goes
// on.
func TestStrangers(t *testing.T) {
	vans := startAll(t, t.Context(), 1, 1, nil)
	for _, v := range vans {
		for _, hello := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01", "", strings.Repeat("\xff", 64)} {
			c := require.Value(net.Dial("tcp", v.listener.Addr().String()))(t)
			_, _ = io.WriteString(c, hello)
			c.Close()
		}
		c := require.Value(net.Dial("tcp", v.listener.Addr().String()))(t)
		conn := require.Value(zmtp.Handshake(t.Context(), c, zmtp.Config{SocketType: "DEALER"}))(t)
		require.NoError(t, errors.Join(conn.Queue([]byte("this is no meta frame")), conn.Flush()))
		var m zmtp.Message
		if err := conn.ReadMessage(&m); err == nil {
			t.Error("a stranger was answered")
		}
		c.Close()
	}
	finalizeAll(t, vans)
	for _, v := range vans {
		if v.Statistics().Refused < 2 {
			t.Errorf("node %d refused %d strangers", v.ID(), v.Statistics().Refused)
		}
	}
}

func TestOneWorkerTooMany(t *testing.T) {
	r := newRoster(1, 1)
	node := func(role pslite.Role, port int32) pslite.Node {
		return pslite.Node{Role: role, Hostname: "h", Port: port}
	}
	require.Value(r.registerNode(node(pslite.Worker, 1)))(t)
	if _, err := r.registerNode(node(pslite.Worker, 2)); err == nil || !strings.Contains(err.Error(), "DMLC_NUM_WORKER=1") {
		t.Errorf("a second worker: %v", err)
	}
	if _, err := r.registerNode(node(pslite.Scheduler, 3)); err == nil {
		t.Error("a second scheduler")
	}
	if complete, err := r.registerNode(node(pslite.Server, 4)); err != nil || !complete {
		t.Errorf("the last node: %v, %v", complete, err)
	}
	if _, err := r.registerNode(node(pslite.Server, 5)); err == nil || !strings.Contains(err.Error(), "complete") {
		t.Errorf("a node after the last: %v", err)
	}
}

func TestRanks(t *testing.T) {
	r := newRoster(2, 3)
	for _, n := range []pslite.Node{
		{Role: pslite.Worker, Hostname: "10.0.0.1", Port: 9}, {Role: pslite.Server, Hostname: "10.0.0.1", Port: 7},
		{Role: pslite.Server, Hostname: "10.0.0.2", Port: 5}, {Role: pslite.Worker, Hostname: "10.0.0.2", Port: 6},
		{Role: pslite.Worker, Hostname: "10.0.0.1", Port: 9, CustomerID: 1}, // the same process
	} {
		require.Value(r.registerNode(n))(t)
	}
	var got []string
	for _, n := range r.nodes {
		got = append(got, fmt.Sprint(n.Role, n.ID, address(n)))
	}
	want := []string{"server 8 10.0.0.2:5", "worker 9 10.0.0.2:6", "server 10 10.0.0.1:7", "worker 11 10.0.0.1:9", "worker 11 10.0.0.1:9"}
	for i := range want {
		if strings.ReplaceAll(got[i], " ", "") != strings.ReplaceAll(want[i], " ", "") {
			t.Errorf("node %d: %s, want %s", i, got[i], want[i])
		}
	}
	if to := r.addressees(Workers); !slices.Equal(to, []int{9, 11}) {
		t.Errorf("workers with a connection: %v", to)
	}
	for i := range 3 {
		if open, err := r.arrive(Workers); err != nil || open != (i == 2) {
			t.Errorf("arrival %d: open %v, %v", i+1, open, err)
		}
	}
	if _, err := r.arrive(8); err == nil {
		t.Error("a barrier of group 8")
	}
}

// A node that dies must end the others, not leave them waiting.
func TestDeadNodeEndsTheOthers(t *testing.T) {
	ctx, kill := context.WithCancel(t.Context())
	vans := startAll(t, ctx, 1, 1, func(c *Config) {
		if c.Role != pslite.Scheduler {
			c.LostAfter = 300 * time.Millisecond
		}
	})
	done := make(chan error, 1)
	go func() { done <- vans[1].AwaitEnd(t.Context()) }()
	victim := vans[2]
	victim.fail(errors.New("killed"))
	_ = victim.Stop(ctx)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "worker 9") || !strings.Contains(err.Error(), "must have died") {
		t.Errorf("the server's wait ended in: %v", err)
	}
	kill()
	for _, v := range vans {
		_ = v.Stop(t.Context())
	}
}

// A worker that registers after another has died takes its place, and its id. No worker takes that
// of one that lives, and no server takes any.
func TestReplacedWorker(t *testing.T) {
	vans := startAll(t, t.Context(), 1, 2, func(c *Config) { c.LostAfter = time.Minute })
	var together errgroup.Group // all are connected then
	for _, v := range vans {
		together.Go(func() error { return v.Barrier(t.Context(), Everyone) })
	}
	require.NoError(t, together.Wait())
	victim := vans[3]
	victim.fail(errors.New("killed"))
	_ = victim.Stop(t.Context())
	for _, c := range []struct {
		role     pslite.Role
		patience time.Duration
		replaces bool
	}{{pslite.Server, 200 * time.Millisecond, false}, {pslite.Worker, 30 * time.Second, true}, {pslite.Worker, 200 * time.Millisecond, false}} {
		config := testConfig(c.role, vans[0].Config().RootPort, 1, 2)
		config.Patience = c.patience
		v, err := Start(t.Context(), config)
		if (err == nil) != c.replaces {
			t.Fatalf("a %v that registers late: %v", c.role, err)
		}
		if c.replaces {
			vans[3] = v
		}
	}
	if vans[3].ID() != victim.ID() || !vans[3].Recovered() || vans[2].Recovered() {
		t.Errorf("node %d takes the place of node %d; recovered: %v, and another: %v", vans[3].ID(), victim.ID(), vans[3].Recovered(), vans[2].Recovered())
	}
	finalizeAll(t, vans)
}

// A node becomes ready by the reader of one connection while those of others receive; the
// race detector has the last word.
func TestMessagesWhileANodeBecomesReady(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	v := &Van{config: Config{Resend: true}.withDefaults(), ctx: ctx, cancel: cancel, group: new(errgroup.Group), ready: make(chan struct{})}
	var readers errgroup.Group
	for range 4 {
		readers.Go(func() error {
			for range 100 {
				m := NewMessage(9)
				m.Sender = 8
				m.Meta.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: 7}
				if err := v.receive(ctx, m); err != nil {
					return err
				}
				v.Statistics()
			}
			return nil
		})
	}
	v.becomeReady()
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
	cancel(errStopped)
	if err := v.group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestHeartbeats(t *testing.T) {
	vans := startAll(t, t.Context(), 1, 1, func(c *Config) {
		c.Heartbeat, c.HeartbeatTimeout = 20*time.Millisecond, 10*time.Second
	})
	heard := func(v *Van, ids ...int) bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id int) bool { return v.lastHeard[id].IsZero() })
	}
	require.Eventually(t, "heartbeats come", func() bool { return heard(vans[0], 8, 9) && heard(vans[1], 1) && heard(vans[2], 1) })
	finalizeAll(t, vans)
}
