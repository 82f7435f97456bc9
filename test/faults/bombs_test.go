package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/hoststest"
)

// bombing is for how long bombs come: PSIDECAR_BOMBS, a duration; eight seconds.
func bombing(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PSIDECAR_BOMBS")
	if text == "" {
		return 8 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PSIDECAR_BOMBS: %v", err)
	}
	return d
}

// A thrower throws bombs until it is stopped.
type thrower struct {
	f      *fleet
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup
	thrown map[string]*atomic.Int64
}

// between is the longest time between two bombs of one thrower. This is about
// memory: they are not to take both cores from the job.
const between = time.Second

// throw throws a kind of bomb again and again, several at a time.
func (x *thrower) throw(what string, atATime int, bomb func(context.Context) error) {
	n := new(atomic.Int64)
	x.thrown[what] = n
	for range atATime {
		x.all.Go(func() {
			for x.ctx.Err() == nil {
				if bomb(x.ctx) == nil {
					n.Add(1)
				}
				pause(x.ctx, time.Duration(rand.Int64N(int64(between))))
			}
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Whatever claims to be small and is large, or to be one and is many, all of it at
// once and beside jobs that count: to the proxies encoded messages, letters, node
// tables and connections that say nothing; to the planner reports, runs and the
// same connections; to the agents a thousand processes with traps; to all pages
// requests that never end. The sums are exact, and no service ends within the
// memory that the chart gives it. PSIDECAR_BOMBS=10m has them come for so long.
func TestBombsBesideJobs(t *testing.T) {
	f := newFleet(t, config{memory: chartLimits(t), groups: []string{"evil"}, plan: elsewhere(t, 4)}) // a plan, for letters
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	x := &thrower{f: f, ctx: ctx, stop: stop, thrown: map[string]*atomic.Int64{}}
	before := f.pids()
	f.lurk(f.net.Host(0))
	forgers := f.forgers(f.net.Host(0), f.net.Host(2))
	x.throwAll(f.net.Host(0), f.net.Host(1))
	var node int
	if text := forgers[0].Line(); !scan(text, &node) {
		t.Fatalf("a forger says %q", text)
	}
	forgers[1].Line()
	x.throw("a node table of thousands of servers over a link", 4, func(ctx context.Context) error {
		return f.tableBomb(ctx, f.net.Host(1), f.net.Host(0), node)
	})
	jobs := 0
	for end := time.Now().Add(bombing(t)); jobs == 0 || time.Now().Before(end); jobs++ {
		f.start(f.counting(50, resending...)).exact()
	}
	stop()
	x.all.Wait()
	for name, n := range x.thrown {
		t.Logf("%d times %s", n.Load(), name)
		if n.Load() == 0 {
			t.Errorf("never: %s", name)
		}
	}
	for _, forger := range forgers {
		forger.CloseInput()
		var told, refused int
		if text := forger.Line(); !scan(text, &told, &refused) || told+refused == 0 {
			t.Errorf("a forger says %q", text)
		}
		t.Logf("%d tables of %d servers went on to a node, %d were refused", told, forgedServers, refused)
	}
	f.withinLimits(before)
	state := f.state(f.sidecars[0])
	t.Logf("%d jobs; %s refused %v, errors %v", jobs, f.sidecars[0].host.Name, state.Refused, state.Errors)
	for _, why := range []string{"codec", "silent"} {
		if state.Errors[why] == 0 {
			t.Errorf("%s has no errors of the kind %q: %v", f.sidecars[0].host.Name, why, state.Errors)
		}
	}
	for _, claim := range []string{"job", "table"} {
		if state.Refused[claim] == 0 {
			t.Errorf("%s has refused no %s: %v", f.sidecars[0].host.Name, claim, state.Refused)
		}
	}
}

func scan(text string, numbers ...any) bool {
	n, err := fmt.Sscan(text, numbers...)
	return err == nil && n == len(numbers)
}

// throwAll throws everything that comes over the network at a host, from another.
func (x *thrower) throwAll(target, source *hosts.Host) {
	f := x.f
	x.throw("a head that claims 95 MiB of keys", 6, func(ctx context.Context) error { return f.encodedBomb(ctx, source, target) })
	x.throw("a letter that is many times as large as its bytes", 20, func(ctx context.Context) error { return f.letterBomb(ctx, source, target) })
	x.throwReports(source)
	for name, port := range map[string]int{"mesh port": meshPort, "planner": plannerAPI, "planner's page": plannerHTP, "proxy's page": proxyHTTP, "agent's page": agentHTTP} {
		s := &silence{from: source, to: target.Address(port), most: 500}
		x.throw("a hundred of 500 silent connections to the "+name, 1, s.dial)
		f.t.Cleanup(s.close)
	}
	for name, port := range map[string]int{"planner's page": plannerHTP, "proxy's page": proxyHTTP, "agent's page": agentHTTP} {
		x.throw("a request without end to the "+name, 40, func(ctx context.Context) error { return f.dribble(ctx, source, target.Address(port)) })
	}
}

// silence is connections that say nothing.
type silence struct {
	from *hosts.Host
	to   string
	most int
	open []net.Conn
}

// dial opens some more, until there are enough. Then the oldest go first.
func (s *silence) dial(ctx context.Context) error {
	for range 100 {
		if len(s.open) >= s.most {
			s.open[0].Close()
			s.open = s.open[1:]
		}
		c, err := s.from.Dial(ctx, "tcp", s.to)
		if err != nil {
			return err
		}
		s.open = append(s.open, c)
	}
	return nil
}

func (s *silence) close() {
	for _, c := range s.open {
		c.Close()
	}
}

// dribble sends a request's head, a line at a time, until it is hung up on.
func (f *fleet) dribble(ctx context.Context, from *hosts.Host, to string) error {
	c, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	line := "GET / HTTP/1.1\r\nHost: " + to + "\r\n"
	for context.AfterFunc(ctx, func() { c.Close() }); ctx.Err() == nil; {
		if _, err := io.WriteString(c, line); err != nil {
			return nil
		}
		line = "X-More: " + strings.Repeat("x", 500) + "\r\n"
		pause(ctx, 200*time.Millisecond)
	}
	return nil
}

// mesh makes a link to a host's proxy.
func (f *fleet) mesh(ctx context.Context, from, to *hosts.Host, h *link.Hello) (net.Conn, error) {
	conn, err := from.Dial(ctx, "tcp", to.Address(meshPort))
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := conn.Write(h.Append(nil)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	answer, err := link.ReadAnswer(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if answer.Refused != "" {
		return nil, errors.Join(fmt.Errorf("refused: %s", answer.Text), conn.Close())
	}
	return conn, nil
}

func (f *fleet) hello(to *hosts.Host, port int) *link.Hello {
	h := &link.Hello{Destination: netip.MustParseAddrPort(to.Address(port)), ID: rand.Uint64()}
	binary.LittleEndian.PutUint64(h.Instance[:], h.ID)
	return h
}

// encodedBomb sends a message to the job's scheduler, by way of its host's proxy,
// that claims to be of 95 MiB of keys beside as many lengths, which do not end.
func (f *fleet) encodedBomb(ctx context.Context, from, to *hosts.Host) error {
	h := f.hello(to, 9091)
	h.Offers = []link.Offer{{Codec: compact.Name, Data: compact.New(compact.DefaultLimits).Offer()}}
	conn, err := f.mesh(ctx, from, to, h)
	if err != nil {
		return err
	}
	defer conn.Close()
	meta := pslite.Meta{Request: true, Pull: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float, pslite.Int32}}
	body := meta.Append(nil, pslite.DMLC)
	const keys = 12 << 20
	list := binary.AppendUvarint([]byte{2}, keys)
	list = append(list, make([]byte, 1+keys/128)...)
	list[len(list)-keys/128] = 1                                             // the stride; what follows are blocks of no bits
	head := binary.AppendUvarint([]byte{1 | 2 | 16, 0}, uint64(len(body))*2) // an identity, lengths and values
	head = slices.Concat(head, body, list, []byte{1}, list[:len(list)/2])
	greeting := zmtp.NewGreeting(1, 0)
	stream := append(greeting[:], zmtp.AppendReady(nil, "DEALER", nil)...)
	stream = zmtp.AppendCommand(stream, "PS", append([]byte{1}, head...))
	if _, err := conn.Write(stream); err != nil {
		return nil // it was thrown, and the link ended
	}
	_, _ = io.Copy(io.Discard, conn) // until the link ends
	return nil
}

// letterBomb sends a letter that takes many times as much as it is long.
func (f *fleet) letterBomb(ctx context.Context, from, to *hosts.Host) error {
	conn, err := f.mesh(ctx, from, to, f.hello(to, meshPort))
	if err != nil {
		return err
	}
	defer conn.Close()
	const ranges = 7 << 20
	b := append([]byte{0, 0, 0, 0, 2}, make([]byte, 6)...) // texts, and the store's version
	b = append(b, 2, 0, 0, 0)                              // kind, batch, owner
	b = binary.AppendUvarint(b, ranges)
	for range ranges {
		b = append(b, 1, 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	if _, err := conn.Write(b); err != nil {
		return nil // likewise
	}
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// tableBomb tells a process at a port the node table of a job that is not its own.
func (f *fleet) tableBomb(ctx context.Context, from, to *hosts.Host, port int) error {
	conn, err := f.mesh(ctx, from, to, f.hello(to, port))
	if err != nil {
		return err
	}
	defer conn.Close()
	foreign := netip.AddrPortFrom(from.IPv4, uint16(1024+rand.IntN(60000)))
	if _, err := conn.Write(opening(table(foreign, netip.MustParseAddrPort(to.Address(port))))); err != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// forgers are processes that make jobs on hosts, beside those of the job.
func (f *fleet) forgers(on ...*hosts.Host) (all []*hoststest.Child) {
	f.t.Helper()
	for _, h := range on {
		all = append(all, hoststest.Start(f.t, h, "evil", hoststest.Task("forge", h.IPv4.String())))
	}
	return all
}
