package jobs

import (
	"cmp"
	"errors"
	"log/slog"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// oneJob returns a job of a scheduler, two servers and a worker, which is local.
func oneJob(t *testing.T, o Options) *job {
	t.Helper()
	return jobIn(t, t.TempDir(), o)
}

// jobIn is oneJob with a state folder.
func jobIn(t *testing.T, dir string, o Options) *job {
	t.Helper()
	o.Dir, o.Log = dir, cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	j := require.Value(New(o))(t)
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	for i, id := range []int32{pslite.SchedulerID, pslite.ServerID(0), pslite.ServerID(1), pslite.WorkerID(0)} {
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{ID: id, Hostname: "10.0.0.1", Port: int32(9000 + i)})
	}
	var nodes pslite.Table
	nodes.Learn(&m)
	x := require.Value(j.newJob("10.0.0.1:9000", testRun, nodes, 2))(t)
	j.register(x)
	x.seen.store = "a store"
	x.addLocal(pslite.WorkerID(0))
	t.Cleanup(x.close)
	return x
}

// Other hosts know a host by the addresses of its workers, also where a server of another address was there first, as
// pods on one node have.
func TestASiteIsNamedByAWorker(t *testing.T) {
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}))(t)
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	for id, host := range map[int32]string{pslite.SchedulerID: "10.0.0.1", pslite.ServerID(0): "10.0.0.2", pslite.WorkerID(0): "10.0.0.3", pslite.WorkerID(1): "10.0.0.4"} {
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{ID: id, Hostname: host, Port: 9000 + id})
	}
	var nodes pslite.Table
	nodes.Learn(&m)
	x := require.Value(j.newJob("10.0.0.1:9001", testRun, nodes, 1))(t)
	j.register(x)
	t.Cleanup(x.close)
	x.addLocal(pslite.ServerID(0))
	for _, id := range []int32{pslite.WorkerID(1), pslite.WorkerID(0)} {
		x.addLocal(id)
		if got := x.site.Name(); got != "10.0.0.4" || !x.router.Ready() {
			t.Errorf("with worker %d here the site is %s, its router open: %v", id, got, x.router.Ready())
		}
	}
}

// Requests of BytePS, whose answers take the same connection, pass as long as
// their keys are at home; one for a displaced key is taken, to go whole to its
// owner; where one of several keys is displaced they fail, and none is lost in
// silence.
func TestBytePSIsCarried(t *testing.T) {
	x := oneJob(t, Options{})
	c := &requests{job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	var m pslite.Message
	m.Meta.Request, m.Meta.Push = true, true
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{7}), make([]byte, 4)}
	if passes, err := x.request(c, &m, pslite.BytePSRaw); !passes || err != nil {
		t.Errorf("with all keys at home a request passes: %v, %v", passes, err)
	}
	x.router.Table().Set([]plan.Range{{Keys: plan.One(8), Owner: 1}})
	if passes, err := x.request(c, &m, pslite.BytePSRaw); !passes || err != nil {
		t.Errorf("with other keys displaced a request passes: %v, %v", passes, err)
	}
	m.Data[0] = pslite.AppendKeys(nil, []uint64{8})
	if passes, err := x.request(c, &m, pslite.BytePSRaw); passes || err != nil {
		t.Errorf("with its own key displaced a request passes: %v, %v", passes, err)
	}
	m.Data[0] = pslite.AppendKeys(nil, []uint64{7, 8})
	if passes, err := x.request(c, &m, pslite.BytePSRaw); passes || !errors.Is(err, route.ErrWhole) {
		t.Errorf("with one of its keys displaced a request passes: %v, %v", passes, err)
	}
}

// A handler is known by what two pushes, of 1.5 and of 0.25, make of a key.
func TestJudgeHandlersByTwoPushes(t *testing.T) {
	floats := func(v float32) []byte { return pslite.AppendFloat32(nil, []float32{v}) }
	for _, c := range []struct {
		name          string
		first, second []byte
		values        pslite.DataType
		want          migrate.Handler
	}{
		{"adds", floats(1.5), floats(1.75), pslite.Float, migrate.Adds},
		{"adds to what there was", floats(4), floats(4.25), pslite.Float, migrate.Adds},
		{"assigns", floats(1.5), floats(0.25), pslite.Float, migrate.Assigns},
		{"subtracts a gradient", floats(-0.015), floats(-0.0175), pslite.Float, migrate.Opaque},
		{"ignores pushes", floats(0), floats(0), pslite.Float, migrate.Opaque},
		{"whole numbers", []byte{1, 0, 0, 0}, []byte{2, 0, 0, 0}, pslite.Int32, migrate.Opaque},
		{"has no value", nil, nil, pslite.Float, migrate.Opaque},
	} {
		if got := judge(c.first, c.second, c.values); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
