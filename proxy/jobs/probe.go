package jobs

import (
	"math"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// probe finds out what the servers' handler does with pushes, on a key that no
// job uses: the last but one of a server's range.
type probe struct {
	op    *route.Op
	step  int
	first []byte
}

// settleHandler reports whether it is known what the handler does, or that it
// will never be known.
func (x *job) settleHandler(*work) bool {
	if x.handler != migrate.Unknown || !x.jobs.opts.Probe {
		return true
	}
	if x.probe == nil {
		worker, err := x.router.Mover()
		if err != nil {
			return false
		}
		x.probe = &probe{}
		x.ask(worker)
	}
	return false
}

// scratchKey is the key that a probe uses.
func (x *job) scratchKey() uint64 {
	k := plan.HomeRange(int32(x.servers-1), x.servers)
	return min(k.Last, math.MaxUint64-1) - 1
}

// ask begins the next step: push 1.5, pull, push 0.25, pull.
func (x *job) ask(worker int32) {
	p := x.probe
	server := x.router.Table().Owner(x.scratchKey())
	p.op = &route.Op{Server: server, Keys: []uint64{x.scratchKey()}}
	if p.step%2 == 0 {
		value := []float32{1.5, 0.25}[p.step/2]
		p.op.Push, p.op.Values = true, [][]byte{pslite.AppendFloat32(nil, []float32{value})}
	}
	p.op.Done = func() {
		if next := x.probed(); next {
			x.ask(worker)
		}
	}
	x.router.Start(worker, p.op)
}

// probed looks at an answer and reports whether there is another step.
func (x *job) probed() bool {
	p := x.probe
	if p.op.Err != nil {
		x.handler = migrate.Opaque
	}
	switch p.step {
	case 1:
		p.first = p.op.Values[0]
	case 3:
		x.handler = judge(p.first, p.op.Values[0], p.op.Type)
	}
	p.step++
	if x.handler == migrate.Unknown {
		return true
	}
	x.jobs.log.Info("the test on a scratch key says what the servers do with pushes", "job", x.name, "handler", x.handler, "key", x.scratchKey())
	return false
}

// judge says what a handler is that had the first value after a push of 1.5 to
// a key that it did not know, and the second after another of 0.25.
func judge(first, second []byte, t pslite.DataType) migrate.Handler {
	if t != pslite.Float || len(first) != 4 || len(second) != 4 {
		return migrate.Opaque
	}
	a := (pslite.Values{Bytes: first}).Float32(0)
	b := (pslite.Values{Bytes: second}).Float32(0)
	switch {
	case b-a == 0.25 && b != 0.25:
		return migrate.Adds
	case a == 1.5 && b == 0.25:
		return migrate.Assigns
	}
	return migrate.Opaque
}
