package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// A probe finds out what the servers' handler does with pushes, on keys that no
// job uses: the last ones of the last server's range. Every host that carries out
// moves asks for itself, on keys of its own, so that no two ask on one; what
// fails is tried again on another key, and is never taken for an answer. What
// fits no handler that is known is believed when another key says the same.
type probe struct {
	worker int32
	op     *route.Op // nil: none is under way
	step   int
	since  time.Time // when the step began
	first  []byte

	slot   int       // of probeKeys; it chooses the key
	failed int       // attempts in a row that came to nothing
	odd    *finding  // what fitted no handler last
	odds   int       // how often something did
	again  time.Time // not before
}

// finding is what became of a key: its values after the two pushes.
type finding struct {
	first, second []byte
	values        pslite.DataType
}

const (
	// probeKeys is how many keys a host has to probe with. Which one is drawn for
	// each attempt: another proxy of the host, which this one takes the place of,
	// may be at it still, and must not be met twice.
	probeKeys = 4096
	// probeStep is how long an answer may take.
	probeStep = 5 * time.Second
	// probePause is how long is waited after the first failure, doubled with
	// each one up to probePauses times.
	probePause  = 100 * time.Millisecond
	probePauses = 6
	// probeOdd is after how many attempts that fit nothing, and never twice the
	// same, the handler is none that is known.
	probeOdd = 8
)

// settleHandler reports whether it is known what the handler does, or that it
// will never be known; it is to be called again and again.
func (x *job) settleHandler(*work) bool {
	if x.handler != migrate.Unknown || !x.jobs.opts.Probe {
		return true
	}
	if x.probe == nil {
		x.probe = &probe{slot: rand.IntN(probeKeys)}
	}
	p, now := x.probe, time.Now()
	switch {
	case p.op != nil && now.Sub(p.since) < probeStep:
	case p.op != nil:
		x.router.Cancel(p.op)
		x.probeFails(fmt.Errorf("no answer within %v", probeStep))
	case !now.Before(p.again):
		if worker, err := x.router.Mover(); err == nil {
			p.worker = worker
			x.ask()
		}
	}
	return x.handler != migrate.Unknown
}

// scratchKey is the key that a probe uses: no other host's are the same.
func (x *job) scratchKey() uint64 {
	hosts := x.workerHosts()
	slices.Sort(hosts)
	host := max(0, slices.Index(slices.Compact(hosts), x.names()[0]))
	k := plan.HomeRange(int32(x.servers-1), x.servers)
	return min(k.Last, math.MaxUint64-1) - 1 - uint64(host*probeKeys+x.probe.slot)
}

// ask begins the next step: push 1.5, pull, push 0.25, pull.
func (x *job) ask() {
	p := x.probe
	key := x.scratchKey()
	op := &route.Op{Server: x.router.Table().Owner(key), Keys: []uint64{key}}
	if p.step%2 == 0 {
		value := []float32{1.5, 0.25}[p.step/2]
		op.Push, op.Values = true, [][]byte{pslite.AppendFloat32(nil, []float32{value})}
	}
	op.Done = func() {
		if p.op == op { // not given up meanwhile
			x.probed()
		}
	}
	p.op, p.since = op, time.Now()
	x.router.Start(p.worker, op)
}

// probed looks at an answer and goes on.
func (x *job) probed() {
	p := x.probe
	op := p.op
	p.op = nil
	switch {
	case op.Err != nil:
		x.probeFails(op.Err)
		return
	case p.step%2 == 1 && len(op.Values) != 1:
		x.probeFails(errors.New("the answer has no value"))
		return
	case p.step == 1:
		p.first = op.Values[0]
	case p.step == 3:
		x.found(finding{p.first, op.Values[0], op.Type})
		return
	}
	p.step++
	x.ask()
}

// probeFails notes that an attempt came to nothing. There will be another.
func (x *job) probeFails(why error) {
	p := x.probe
	x.jobs.log.Info("a test on a scratch key came to nothing; it will be made again on another", "job", x.name, "key", x.scratchKey(), "step", p.step, "error", why)
	p.again = time.Now().Add(probePause << min(p.failed, probePauses))
	p.failed++
	p.op, p.step = nil, 0
	p.slot = rand.IntN(probeKeys)
}

// found takes in what became of a key.
func (x *job) found(f finding) {
	p := x.probe
	handler := judge(f.first, f.second, f.values)
	same := p.odd != nil && p.odd.values == f.values && bytes.Equal(p.odd.first, f.first) && bytes.Equal(p.odd.second, f.second)
	p.failed, p.step = 0, 0
	key := x.scratchKey()
	p.slot = rand.IntN(probeKeys)
	if p.odds++; handler == migrate.Opaque && !same && p.odds < probeOdd {
		p.odd = &f // somebody else may have pushed to that key
		return
	}
	x.handler = handler
	x.jobs.log.Info("the test on a scratch key says what the servers do with pushes", "job", x.name, "handler", x.handler, "key", key)
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
