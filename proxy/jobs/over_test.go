package jobs

import (
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/test/require"
)

// servers answer what the proxy itself asks: every key has the same four bytes.
type servers struct {
	t *testing.T
	x *job
}

func (s servers) take(m *pslite.Message, d pslite.Dialect) error {
	m.Meta.Request = false
	if m.Meta.Push {
		m.Data = nil
	} else {
		m.Data[1] = make([]byte, 4*m.Keys().Len())
	}
	return s.x.takeAnswer(&answers{job: s.x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0)}, m, d)
}

// answer answers all that was put into connections.
func (s servers) answer(all []*requests) {
	s.t.Helper()
	for n := 1; n > 0; {
		n = 0
		for _, c := range all {
			for ; len(c.queue) > 0; n++ {
				b := c.queue[0]
				c.queue = c.queue[1:]
				require.NoError(s.t, takeFrom(b, s.take))
			}
		}
	}
}

// When a job's connections are gone for a while its moves end, each as far as it
// has come, and the planner gets the reason; nothing is tried again.
func TestMovesOfAJobThatIsOver(t *testing.T) {
	keys := []uint64{7, 8, 9}
	for _, c := range []struct {
		name     string
		until    migrate.Phase // how far the move comes
		recorded bool
		moved    uint64
	}{
		{"not begun", 0, false, 0},
		{"values are being read", 1, false, 0},
		{"the store says yes", 4, true, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
			x.jobs.plans.listed = true
			to := connect(t, x)
			accept := func() {
				x.locked(func() error {
					x.accept(&api.MoveBatch{Batch: 1, From: 0, To: 1, First: keys})
					return nil
				})
			}
			if c.until > 0 {
				accept()
				x.tick()
			}
			if c.until > 1 {
				servers{t, x}.answer(to)
			}
			if phase := x.site.Phase(x.site.Last()); c.until > 0 && phase != c.until {
				t.Fatalf("the move is at %v, want %v", phase, c.until)
			}
			for _, c := range to {
				c.Close()
			}
			for rank := range x.servers {
				x.down[pair{pslite.WorkerID(0), int32(rank)}].Close()
			}
			if c.until == 0 {
				accept()
			}
			before := x.site.Last()
			x.tick()
			if moving := x.site.Moving(); x.site.Last() != before || (moving == 1) != (c.until > 0) {
				t.Errorf("just after its connections ended %d moves are under way, %d were begun", moving, x.site.Last()-before)
			}
			x.inUse = time.Now().Add(-unusedAfter)
			for range 3 {
				x.tick()
				x.notBefore = time.Time{}
			}
			if c.recorded {
				x.locked(func() error {
					for batch := range x.recording {
						x.site.Recorded(batch, nil)
					}
					return nil
				})
			}
			if x.site.Moving() > 0 || len(x.work)+len(x.underWay) > 0 || x.site.Last() != before {
				t.Errorf("%d moves are under way, %d wait, %d were begun", x.site.Moving(), len(x.work), x.site.Last()-before)
			}
			if len(x.pendingUp) > 0 || len(x.router.Holds()) > 0 {
				t.Errorf("%d queues of messages are kept, %d batches held", len(x.pendingUp), len(x.router.Holds()))
			}
			reports := x.reports()
			if len(reports) != 1 {
				t.Fatalf("%d reports, want 1", len(reports))
			}
			r, refused := reports[0], uint64(0)
			for _, f := range r.GetRefused() {
				if f.GetReason() != "ended" {
					t.Errorf("refused for %s: %s", f.GetReason(), f.GetMessage())
				}
				refused += f.GetKeys()
			}
			if !r.GetDone() || r.GetMovedKeys() != c.moved || refused != uint64(len(keys))-c.moved {
				t.Errorf("the planner hears %v", r)
			}
			if owner := x.router.Table().Owner(8); owner != int32(min(c.moved, 1)) {
				t.Errorf("server %d has the keys", owner)
			}
		})
	}
}

// connect gives a job its worker's connections to the servers, theirs to the worker, and a request that is answered already.
func connect(t *testing.T, x *job) (all []*requests) {
	t.Helper()
	for rank := range x.servers {
		c := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(rank)}
		t.Cleanup(func() { c.Close() })
		c.join(x, c.peer)
		all = append(all, c)
		back(t, x, rank)
	}
	var m pslite.Message
	m.Meta.Request, m.Meta.Push = true, true
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{1}), make([]byte, 4)}
	if passes, err := x.request(all[0], &m, pslite.DMLC); !passes || err != nil {
		t.Fatalf("a request passes: %v, %v", passes, err)
	}
	m.Meta.Request = false
	require.Value(x.answer(&answers{job: x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0)}, &m, pslite.DMLC))(t)
	return all
}

// back gives a job a server's connection to its worker.
func back(t *testing.T, x *job, rank int) *answers {
	t.Helper()
	c := &answers{jobs: x.jobs, job: x, sender: pslite.ServerID(rank), peer: pslite.WorkerID(0)}
	t.Cleanup(func() { c.Close() })
	c.join(x, c.peer)
	return c
}

// Hosts may be cut from each other for as long as TCP is patient: while its connections are there a job
// is not over, however long nothing has come.
func TestACutJobIsNotOver(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	connect(t, x)
	for _, cut := range []time.Duration{3 * time.Second, 200 * time.Second, 24 * time.Hour} {
		x.inUse = time.Now().Add(-cut)
		if s := x.state(); s.Over {
			t.Errorf("after a cut of %v the state is %+v", cut, s)
		}
		x.locked(func() error {
			if x.over(time.Now().Add(cut)) {
				t.Errorf("after a cut of %v the job is over", cut)
			}
			return nil
		})
	}
}

// Groups of many keys move four at a time; small ones, of keys that go to many servers,
// as many as have together no more keys than those.
func TestSmallGroupsMoveTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		groups []int // keys of each
		moving int
	}{
		{"large", []int{moveKeys, moveKeys, moveKeys, moveKeys, moveKeys}, maxMoving},
		{"of a key", slices.Repeat([]int{1}, 2*maxGroups), maxGroups},
		{"small behind large", slices.Concat([]int{moveKeys, moveKeys, moveKeys, moveKeys - 2}, slices.Repeat([]int{1}, 5)), maxMoving + 2},
		{"large behind small", slices.Concat(slices.Repeat([]int{1}, 5), []int{moveKeys, moveKeys, moveKeys, moveKeys}), 5 + maxMoving - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
			x.jobs.plans.listed = true
			connect(t, x)
			x.locked(func() error {
				next := uint64(0)
				for i, n := range c.groups {
					b := &api.MoveBatch{Batch: uint64(i + 1), From: 0, To: 1}
					for range n {
						b.First = append(b.First, next)
						next += 2 // a key of its own
					}
					x.accept(b)
				}
				return nil
			})
			x.tick()
			if n := x.site.Moving(); n != c.moving {
				t.Errorf("%d groups move, want %d", n, c.moving)
			}
		})
	}
}
