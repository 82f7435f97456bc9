package jobs

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/proxy/spare"
)

// spareTable is the node table of a job with the scheduler and its only server on the first of these
// hosts, and a worker on each.
func spareTable(hosts ...string) *pslite.Table {
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{{ID: pslite.SchedulerID, Hostname: hosts[0], Port: 9000}, {ID: pslite.ServerID(0), Hostname: hosts[0], Port: 9001}}
	for i, h := range hosts {
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{ID: pslite.WorkerID(i), Hostname: h, Port: int32(9100 + i)})
	}
	t := &pslite.Table{}
	t.Learn(&m)
	return t
}

// spareJob returns that job on the host with the worker of a rank. It has spare servers.
func spareJob(t *testing.T, dir string, rank int, o Options, hosts ...string) *job {
	t.Helper()
	o.Dir, o.Log, o.Spare, o.Parts, o.SpareLimit = dir, slog.New(slog.DiscardHandler), true, 2, 64<<20
	j, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	x, err := j.newJob("job", testRun, *spareTable(hosts...), 1)
	if err != nil {
		t.Fatal(err)
	}
	j.register(x)
	x.seen.store = "a store"
	x.addLocal(pslite.WorkerID(rank))
	t.Cleanup(x.close)
	return x
}

var spareTestHosts = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}

func TestHostsWithoutAServerHaveSpareOnes(t *testing.T) {
	for _, c := range []struct{ hosts, want []string }{
		{[]string{"10.0.0.1", "10.0.0.3", "10.0.0.2", "10.0.0.3"}, []string{"10.0.0.2", "10.0.0.3"}},
		{[]string{"10.0.0.1"}, nil},
		{[]string{"10.0.0.1", "10.0.0.2", "a-name"}, nil}, // whose proxy cannot be reached
	} {
		if got := spareHosts(spareTable(c.hosts...)); !slices.Equal(got, c.want) {
			t.Errorf("of hosts %v these have spare servers: %v, want %v", c.hosts, got, c.want)
		}
	}
}

// A link to a spare server is taken from a proxy of the job, at the host that has it, which counts the
// same spare servers.
func TestLinksToSpareServers(t *testing.T) {
	asking := spareJob(t, t.TempDir(), 0, Options{}, spareTestHosts...)
	hello := asking.spareHello(0)
	other := spareJob(t, t.TempDir(), 0, Options{}, append(spareTestHosts, "10.0.0.4")...)
	stranger := spareJob(t, t.TempDir(), 0, Options{}, "10.0.0.9", "10.0.0.2", "10.0.0.3")
	for _, c := range []struct {
		name  string
		hello []byte
		from  Peer
		at    string
		want  reason.Reason
	}{
		{"taken", hello, proxyAt("10.0.0.1"), "10.0.0.2", ""},
		{"not verified", hello, nil, "10.0.0.2", ""},
		{"of another proxy", hello, proxyAt("10.0.0.3"), "10.0.0.2", reason.Forged},
		{"at another host", hello, proxyAt("10.0.0.1"), "10.0.0.3", reason.Forged},
		{"for another spare server", asking.spareHello(1), nil, "10.0.0.2", reason.NotAllowed},
		{"with other spare servers", other.spareHello(0), nil, "10.0.0.2", reason.NotAllowed},
		{"of a host without a worker", stranger.spareHello(0), nil, "10.0.0.2", reason.NotAllowed},
		{"of another version", append([]byte{spareVersion + 1}, hello[1:]...), nil, "10.0.0.2", reason.NotAllowed},
		{"cut short", hello[:len(hello)-1], nil, "10.0.0.2", reason.NotAllowed},
		{"empty", nil, nil, "10.0.0.2", reason.NotAllowed},
	} {
		x := spareJob(t, t.TempDir(), 1, Options{}, spareTestHosts...)
		serve, err := x.jobs.SpareServer(c.hello, c.from, netip.MustParseAddr(c.at))
		if got := reason.Of(err); c.want != "" && got != c.want || (serve != nil) != (c.want == "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A proxy that is replaced, or has been killed, leaves the values to the next one. Where they are gone
// while keys are in parts, the job does not go on with empty ones.
func TestSpareServersAreTakenUp(t *testing.T) {
	hello := spareJob(t, t.TempDir(), 0, Options{}, spareTestHosts...).spareHello(0)
	at := netip.MustParseAddr("10.0.0.2")
	dir := t.TempDir()
	first := spareJob(t, dir, 1, Options{}, spareTestHosts...)
	if _, err := first.jobs.SpareServer(hello, nil, at); err != nil {
		t.Fatal(err)
	}
	next := spareJob(t, t.TempDir(), 1, Options{}, spareTestHosts...)
	next.dir = first.dir
	if _, err := next.jobs.SpareServer(hello, nil, at); reason.Of(err) != reason.Stopping {
		t.Errorf("while another proxy has the values: %v", err)
	}
	first.close()
	if _, err := next.jobs.SpareServer(hello, nil, at); err != nil {
		t.Errorf("after it has ended: %v", err)
	}
	next.close()
	if err := os.Remove(filepath.Join(first.dir, spareFile)); err != nil {
		t.Fatal(err)
	}
	last := spareJob(t, t.TempDir(), 1, Options{}, spareTestHosts...)
	last.dir = first.dir
	last.router.Table().Set([]plan.Range{{Keys: plan.One(5), Owner: last.places().Parted(3)}})
	if _, err := last.jobs.SpareServer(hello, nil, at); reason.Of(err) != reason.State || last.failed == nil {
		t.Errorf("without the values: %v, the job's requests fail because of %v", err, last.failed)
	}
	// While values are whole, a file that cannot be used does not keep the job from going on.
	whole := spareJob(t, t.TempDir(), 1, Options{}, spareTestHosts...)
	if err := os.WriteFile(filepath.Join(whole.dir, spareFile), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := whole.jobs.SpareServer(hello, nil, at); reason.Of(err) != reason.State || whole.failed != nil {
		t.Errorf("with a damaged file and whole values: %v, the job's requests fail because of %v", err, whole.failed)
	}
}

// Where a proxy counts other spare servers, keys do not go into parts, and a table that has some is
// not used.
func TestPartsElsewhereAreRefused(t *testing.T) {
	x := spareJob(t, t.TempDir(), 0, Options{}, spareTestHosts...)
	p := x.places()
	more := plan.Places{Servers: 1, Spare: 3}
	for owner, want := range map[int32]bool{0: false, p.Parted(2): false, p.Parted(3): false, plan.Parted(2): true, more.Parted(2): true, p.Parted(4): true} {
		for _, kind := range []migrate.Kind{migrate.Hold, migrate.Release} {
			m := migrate.Message{Kind: kind, Owner: owner, Batch: route.Batch{Mover: "10.0.0.2", Number: 1}, Keys: []plan.Keys{plan.One(5)}}
			x.mu.Lock()
			got := x.misplaces(&m)
			x.mu.Unlock()
			if got != want {
				t.Errorf("message %d about owner %d is misplaced: %v, want %v", kind, owner, got, want)
			}
		}
	}
	for _, owner := range []int32{p.Parted(2), more.Parted(2)} {
		table := route.NewTable(1)
		table.Set([]plan.Range{{Keys: plan.One(5), Owner: owner}})
		x.mu.Lock()
		err := x.checkOwners(table)
		x.mu.Unlock()
		if (err != nil) != (owner == more.Parted(2)) || err != x.failed {
			t.Errorf("a table with owner %d: %v, and requests fail because of %v", owner, err, x.failed)
		}
	}
}

// A request of the router goes to the host of the spare server, and its answer is as PS-lite's; after
// another proxy was there in between, too.
func TestRequestsToSpareServers(t *testing.T) {
	serving := spareJob(t, t.TempDir(), 1, Options{}, spareTestHosts...)
	asking := spareJob(t, t.TempDir(), 0, Options{
		DialSpare: func(ctx context.Context, host netip.Addr, hello []byte) (spare.Link, error) {
			serve, err := serving.jobs.SpareServer(hello, nil, host)
			if err != nil {
				return spare.Link{}, err
			}
			near, far := net.Pipe()
			go serve(ctx, far)
			return spare.Link{Conn: near, Keeps: true}, nil
		},
	}, spareTestHosts...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- asking.jobs.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	values := pslite.AppendFloat32(nil, []float32{1, 2, 3, 4})
	// The router's own op stands for any message of it.
	push := &route.Op{Server: 1, Push: true, Keys: []uint64{9}, Values: [][]byte{values}}
	pull := &route.Op{Server: 1, Keys: []uint64{9}}
	over := make(chan struct{}, 2)
	for _, op := range []*route.Op{push, push, pull} {
		op.Done = func() { over <- struct{}{} }
	}
	m := messageOf(1, true, []uint64{0}, []float32{1})
	asking.locked(func() error {
		asking.router.Request(pslite.WorkerID(0), 0, &m.Meta, m.Keys(), pslite.DMLC)
		asking.router.Start(pslite.WorkerID(0), push)
		asking.router.Start(pslite.WorkerID(0), pull)
		return nil
	})
	for range 2 {
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Fatal("no answer within a minute")
		}
	}
	if push.Err != nil || pull.Err != nil || len(pull.Values) != 1 || !bytes.Equal(pull.Values[0], values) || pull.Type != pslite.Float {
		t.Errorf("pushed with %v, pulled %v of type %d with %v", push.Err, pull.Values, pull.Type, pull.Err)
	}
	// What the server refuses ends the op.
	wrong := &route.Op{Server: 1, Push: true, Keys: []uint64{9}, Values: [][]byte{values[:8]}, Done: func() { over <- struct{}{} }}
	asking.locked(func() error { asking.router.Start(pslite.WorkerID(0), wrong); return nil })
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("no answer within a minute")
	}
	// Once the job is over, and nobody is connected any more, the values go.
	asking.mu.Lock()
	asking.restSpares(time.Now())
	asking.mu.Unlock()
	file := filepath.Join(serving.dir, spareFile)
	for now, end := time.Now(), time.Now().Add(time.Minute); ; now = now.Add(spareKept) {
		if _, err := os.Stat(file); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the values are still there after a minute")
		}
		serving.mu.Lock()
		serving.restSpares(now)
		serving.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if wrong.Err == nil || asking.failed != nil {
		t.Errorf("a value of another length: %v, and requests fail because of %v", wrong.Err, asking.failed)
	}
}

// Whatever is taken for a message to a spare server is a request or an error.
func FuzzSpareRequests(f *testing.F) {
	for _, cut := range [][]byte{{}, {0}, {1}, {1, 9}} {
		f.Add(cut, int64(pslite.DMLC))
	}
	for _, d := range []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.Unknown} {
		spoken := d
		if d == pslite.Unknown {
			spoken = pslite.DMLC
		}
		m := messageOf(3, true, []uint64{4, 5}, []float32{1, 2})
		whole := appendMessage(nil, append([][]byte{m.Meta.Append(nil, spoken)}, m.Data...))
		f.Add(whole, int64(d))
		f.Add(whole[:len(whole)-3], int64(d))
	}
	f.Fuzz(func(t *testing.T, raw []byte, d int64) {
		m, _, err := decodeSpare(raw, pslite.Dialect(d))
		if err != nil {
			return
		}
		r, err := spareRequest(9, m)
		if err != nil {
			return
		}
		bytes := 0
		for _, p := range r.Pieces {
			bytes += len(p.Value)
		}
		if len(r.Pieces) != m.Keys().Len() || r.Push && bytes > len(m.Data[1]) {
			t.Errorf("%d pieces with %d bytes of %d keys with %d", len(r.Pieces), bytes, m.Keys().Len(), len(m.Data[1]))
		}
	})
}

// A host names the part keys that its own servers hold, also those of keys that are home again.
func TestPartKeysOfOwnServers(t *testing.T) {
	x := spareJob(t, t.TempDir(), 0, Options{}, spareTestHosts...)
	if got := x.jobs.PartKeys(); got != nil {
		t.Errorf("part keys of whole values: %v", got)
	}
	owner := x.places().Parted(3)
	x.router.Table().Set([]plan.Range{{Keys: plan.Keys{First: 5, Last: 7}, Owner: owner}, {Keys: plan.One(9), Owner: owner}})
	if got := x.jobs.PartKeys(); got != nil {
		t.Errorf("part keys of a host without a server: %v", got)
	}
	x.router.Table().Set([]plan.Range{{Keys: plan.One(8), Owner: owner}})
	if got := x.jobs.PartKeys(); got != nil {
		t.Errorf("part keys of a host without a server: %v", got)
	}
	x.local[pslite.ServerID(0)] = true
	at, _ := x.places().PartKey(5, 0, 3)
	want := []PartKeys{{"job", []plan.PartRange{{Keys: plan.Keys{First: at, Last: at + 4}, Whole: 5}}}}
	for _, when := range []string{"in parts", "home again"} {
		if got := x.jobs.PartKeys(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		x.router.Table().Set([]plan.Range{{Keys: plan.Keys{First: 5, Last: 9}, Owner: plan.Home}})
	}
}
