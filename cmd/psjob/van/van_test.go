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
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// variables are a worker's environment.
func variables() map[string]string {
	return map[string]string{"DMLC_ROLE": "worker", "DMLC_NUM_SERVER": "2", "DMLC_NUM_WORKER": "3",
		"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9000"}
}

func lookupIn(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestFromEnvironment(t *testing.T) {
	vars := variables()
	for name, value := range map[string]string{"DMLC_PS_ROOT_URI": "[fd00::1]", "PS_RESEND": "1", "PS_RESEND_TIMEOUT": "300",
		"PS_DROP_MSG": "5", "PS_HEARTBEAT_INTERVAL": "2", "PS_HEARTBEAT_TIMEOUT": "10", "PORT": "7", "DMLC_NODE_HOST": "fd00::2",
		"PS_VERBOSE": "1", "DMLC_LOCAL": "0", "DMLC_PS_VAN_TYPE": "zmq", "DMLC_PS_WATER_MARK": "9", "DMLC_INTERFACE": "lo"} {
		vars[name] = value
	}
	got, err := FromEnvironment(lookupIn(vars))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Role: pslite.Worker, Servers: 2, Workers: 3, Root: "fd00::1", RootPort: 9000, NodeHost: "fd00::2", Interface: "lo",
		Port: 7, Resend: true, ResendTimeout: 300 * time.Millisecond, Drop: 5, Heartbeat: 2 * time.Second,
		HeartbeatTimeout: 10 * time.Second, Watermark: 9, Verbose: 1}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, tc := range []struct{ name, value string }{
		{"DMLC_ROLE", "king"}, {"DMLC_ROLE", "-"}, {"DMLC_NUM_SERVER", "two"}, {"DMLC_NUM_SERVER", "0"}, {"DMLC_NUM_WORKER", "-"},
		{"DMLC_PS_ROOT_URI", "-"}, {"DMLC_PS_ROOT_URI", ""}, {"DMLC_PS_ROOT_PORT", "70000"}, {"DMLC_PS_ROOT_PORT", "-"},
		{"DMLC_LOCAL", "1"}, {"DMLC_PS_VAN_TYPE", "ibverbs"}, {"PS_RESEND", "yes"}, {"PS_RESEND_TIMEOUT", "0"},
		{"PS_DROP_MSG", "101"}, {"PORT", "-5"}, {"PS_VERBOSE", "loud"},
	} {
		vars := variables()
		if vars[tc.name] = tc.value; tc.value == "-" {
			delete(vars, tc.name)
		}
		_, err := FromEnvironment(lookupIn(vars))
		var e *EnvironmentError
		if !errors.As(err, &e) || e.Name != tc.name {
			t.Errorf("%s=%s: error %v", tc.name, tc.value, err)
		}
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func freePort(t testing.TB) int {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
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
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return vans
}

func finalizeAll(t *testing.T, vans []*Van) {
	t.Helper()
	var group errgroup.Group
	for _, v := range vans {
		group.Go(func() error { return v.Finalize(t.Context()) })
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
			c, err := net.Dial("tcp", v.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, hello)
			c.Close()
		}
		c, err := net.Dial("tcp", v.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := zmtp.Handshake(t.Context(), c, zmtp.Config{SocketType: "DEALER"})
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteMessage([]byte("this is no meta frame")); err != nil {
			t.Fatal(err)
		}
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
	if _, err := r.add(node(pslite.Worker, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.add(node(pslite.Worker, 2)); err == nil || !strings.Contains(err.Error(), "DMLC_NUM_WORKER=1") {
		t.Errorf("a second worker: %v", err)
	}
	if _, err := r.add(node(pslite.Scheduler, 3)); err == nil {
		t.Error("a second scheduler")
	}
	if complete, err := r.add(node(pslite.Server, 4)); err != nil || !complete {
		t.Errorf("the last node: %v, %v", complete, err)
	}
	if _, err := r.add(node(pslite.Server, 5)); err == nil || !strings.Contains(err.Error(), "complete") {
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
		if _, err := r.add(n); err != nil {
			t.Fatal(err)
		}
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
func TestDeadNode(t *testing.T) {
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

// cutter forwards connections to an address and cuts them.
type cutter struct {
	l     net.Listener
	to    string
	conns chan net.Conn
}

func newCutter(t testing.TB, to string) *cutter {
	c := &cutter{l: listen(t), to: to, conns: make(chan net.Conn, 100)}
	go func() {
		for {
			in, err := c.l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
			c.conns <- in
		}
	}()
	return c
}

// Messages that a broken connection did not take go out on the next one, in
// order, and none twice.
func TestDealerReconnects(t *testing.T) {
	l := listen(t)
	got := make(chan string, 10_000)
	var conns errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	conns.Go(func() error {
		for {
			nc, err := l.Accept()
			if err != nil {
				return nil
			}
			conns.Go(func() error {
				defer nc.Close()
				conn, err := zmtp.Handshake(ctx, nc, zmtp.Config{SocketType: "ROUTER"})
				if err != nil {
					return nil
				}
				stop := context.AfterFunc(ctx, func() { nc.Close() })
				defer stop()
				for {
					var m zmtp.Message
					if conn.ReadMessage(&m) != nil {
						return nil
					}
					got <- string(m.Frames[0])
				}
			})
		}
	})
	cut := newCutter(t, l.Addr().String())
	d := newDealer("a node", cut.l.Addr().String(), "ps9", Config{}.withDefaults())
	conns.Go(func() error { d.run(ctx); return nil })
	const rounds = 5
	var written atomic.Int64
	for round := range rounds {
		for i := range 20 {
			o := outgoing{frames: [][]byte{[]byte(fmt.Sprintf("%d.%02d", round, i))}, written: func() { written.Add(1) }}
			if err := d.send(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			<-got // all of the round have arrived before the cut
		}
		(<-cut.conns).Close()
		for d.connected.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	drained, stop := context.WithTimeout(ctx, 10*time.Second)
	d.drain(drained)
	stop()
	if n := written.Load(); n != rounds*20 {
		t.Errorf("%d messages written, want %d", n, rounds*20)
	}
	if len(got) != 0 {
		t.Errorf("%d messages arrived twice", len(got))
	}
	cancel()
	l.Close()
	cut.l.Close()
	for len(cut.conns) > 0 {
		(<-cut.conns).Close()
	}
	_ = conns.Wait()
}

// What putBack keeps is exactly what was not wholly written.
func TestPutBack(t *testing.T) {
	d := newDealer("a node", "", "", Config{}.withDefaults())
	batch := func() []outgoing {
		return []outgoing{{frames: [][]byte{make([]byte, 10)}}, {frames: [][]byte{make([]byte, 300), {1}}}, {frames: [][]byte{{2}}}}
	}
	for written, want := range map[int64]int{0: 3, 11: 3, 12: 2, 12 + 309 + 2: 2, 12 + 309 + 3: 1, 12 + 309 + 3 + 3: 0} {
		d.waiting = nil
		for len(d.room) > 997 {
			<-d.room
		}
		d.putBack(batch(), written)
		if len(d.waiting) != want {
			t.Errorf("%d bytes written leave %d messages, want %d", written, len(d.waiting), want)
		}
	}
}

func TestQueueOrder(t *testing.T) {
	q := newQueue(10)
	for i, priority := range []int32{0, 0, 5, 1, 5, 0} {
		m := NewMessage(i)
		m.Meta.Priority = priority
		if err := q.put(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for range 6 {
		m, err := q.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.Recver)
	}
	if want := []int{2, 4, 3, 0, 1, 5}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	full := newQueue(1)
	_ = full.put(t.Context(), NewMessage(1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := full.put(ctx, NewMessage(2)); err == nil {
		t.Error("a full queue took a message")
	}
}

func TestHeartbeats(t *testing.T) {
	vans := startAll(t, t.Context(), 1, 1, func(c *Config) {
		c.Heartbeat, c.HeartbeatTimeout = 20*time.Millisecond, 10*time.Second
	})
	deadline := time.Now().Add(10 * time.Second)
	heard := func(v *Van, ids ...int) bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id int) bool { return v.lastHeard[id].IsZero() })
	}
	for !heard(vans[0], 8, 9) || !heard(vans[1], 1) || !heard(vans[2], 1) {
		if time.Now().After(deadline) {
			t.Fatal("heartbeats do not come")
		}
		time.Sleep(5 * time.Millisecond)
	}
	finalizeAll(t, vans)
}
