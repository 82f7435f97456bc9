package jobs

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/test/require"
)

// handling is servers whose handler is a function of a key's value and the pushed
// one. It implements watcher for one host's job at a time.
type handling struct {
	x     *job
	rule  func(had, pushed float32) float32
	store map[uint64]float32
	fail  int // this many answers have no values
}

func (h *handling) take(m *pslite.Message, d pslite.Dialect) error {
	key := m.Keys().At(0)
	m.Meta.Request = false
	switch {
	case m.Meta.Push:
		h.store[key] = h.rule(h.store[key], m.Values().Float32(0))
		m.Data = nil
	case h.fail > 0:
		h.fail--
		m.Data = nil
	default:
		m.Data[1] = pslite.AppendFloat32(nil, []float32{h.store[key]})
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	}
	return h.x.takeAnswer(&answers{job: h.x, sender: pslite.ServerID(1), peer: pslite.WorkerID(0)}, m, d)
}

// answerOne has the servers answer one message of a host's, if there is one.
func (h *handling) answerOne(t *testing.T, x *job, all []*requests) bool {
	t.Helper()
	h.x = x
	for _, c := range all {
		if len(c.queue) == 0 {
			continue
		}
		b := c.queue[0]
		c.queue = c.queue[1:]
		require.NoError(t, takeFrom(b, h.take))
		return true
	}
	return false
}

// settle has a job go on with its probe, with no pause after failures.
func settle(x *job) {
	x.locked(func() error {
		if x.probe != nil {
			x.probe.again = time.Time{}
		}
		x.settleHandler()
		return nil
	})
}

// prober returns a job on the host with that address, one of two with workers.
func prober(t *testing.T, host string) (*job, []*requests) {
	t.Helper()
	x := oneJob(t, Options{Probe: true})
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{
		{ID: pslite.WorkerID(0), Hostname: host, Port: 9003},
		{ID: pslite.WorkerID(1), Hostname: map[string]string{"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"}[host], Port: 9003},
	}
	x.nodes.Learn(&m)
	return x, connect(t, x)
}

var handlers = map[string]struct {
	rule func(had, pushed float32) float32
	want migrate.Handler
}{
	"adds":                 {func(had, pushed float32) float32 { return had + pushed }, migrate.Adds},
	"assigns":              {func(_, pushed float32) float32 { return pushed }, migrate.Assigns},
	"subtracts a gradient": {func(had, pushed float32) float32 { return had - 0.01*pushed }, migrate.Opaque},
	"ignores pushes":       {func(had, _ float32) float32 { return had }, migrate.Opaque},
}

// Two hosts that probe at the same time, a message of each in turn, both find the
// true handler, whatever it is.
func TestProbesBesideEachOther(t *testing.T) {
	for name, c := range handlers {
		h := handling{rule: c.rule, store: map[uint64]float32{}}
		x, toX := prober(t, "10.0.0.1")
		y, toY := prober(t, "10.0.0.2")
		for range 200 {
			settle(x)
			settle(y)
			h.answerOne(t, x, toX)
			h.answerOne(t, y, toY)
		}
		if x.handler != c.want || y.handler != c.want {
			t.Errorf("%s: the hosts say %s and %s, want %s", name, x.handler, y.handler, c.want)
		}
	}
}

// A proxy that takes another's place may use the keys that it used: that may
// cost attempts, and never makes for a wrong answer.
func TestProbesOnTheSameKeys(t *testing.T) {
	for name, c := range handlers {
		for lag := range 8 {
			h := handling{rule: c.rule, store: map[uint64]float32{}}
			x, toX := prober(t, "10.0.0.1")
			y, toY := prober(t, "10.0.0.1")
			x.probe, y.probe = &probe{}, &probe{}
			for i := range 200 {
				settle(x)
				h.answerOne(t, x, toX)
				if i >= lag {
					settle(y)
					h.answerOne(t, y, toY)
				}
			}
			if x.handler != c.want || y.handler != c.want {
				t.Errorf("%s, the second %d messages later: they say %s and %s, want %s", name, lag, x.handler, y.handler, c.want)
			}
		}
	}
}

// An answer without what it should have, and one that does not come, are no
// verdict: the probe is made again, later, on another key.
func TestProbesThatFail(t *testing.T) {
	for name, c := range handlers {
		h := handling{rule: c.rule, store: map[uint64]float32{}, fail: 5}
		x, to := prober(t, "10.0.0.1")
		settle(x)
		x.locked(func() error {
			x.probe.since = time.Now().Add(-probeStep) // nobody answers
			first := x.scratchKey()
			x.settleHandler()
			if x.probe.op != nil || !x.probe.again.After(time.Now()) || x.scratchKey() == first {
				t.Errorf("%s: without an answer the probe goes on as %+v", name, x.probe)
			}
			return nil
		})
		for range 200 {
			settle(x)
			h.answerOne(t, x, to)
		}
		if x.handler != c.want || h.fail > 0 {
			t.Errorf("%s: after failures it says %s, want %s", name, x.handler, c.want)
		}
	}
}

// The handler of a job whose keys stay, as for their many commands, is not waited for: its moves are
// refused with the reason.
func TestProbesOfKeysThatStay(t *testing.T) {
	x, _ := prober(t, "10.0.0.1")
	c := &requests{job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	for step := range int32(33) {
		var m pslite.Message
		m.Meta.Reset()
		m.Meta.Request, m.Meta.Push, m.Meta.Head, m.Meta.Timestamp = true, true, step, step
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{7}), make([]byte, 4)}
		m.Meta.DataSize = 12
		require.Value(x.request(c, &m, pslite.DMLC))(t)
	}
	settle(x)
	if x.handler != migrate.Opaque || x.probe.op != nil {
		t.Errorf("the handler is %s, and the probe %+v; want none, and no request", x.handler, x.probe)
	}
}
