package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// probe finds out what the servers' handler does with pushes, on keys that no job uses: the last
// ones of the last server's range. It pushes 1.5, pulls, pushes 0.25 and pulls again, and judges by
// the two values.
//
// Each host that carries out moves tests for itself, on keys of its own, so that no two hosts use
// the same one. An attempt that fails is made again on another key, and is never taken for an
// answer. A result that fits no known handler is believed only when another key gives the same: the
// first may have been used by somebody.
type probe struct {
	worker int32
	op     *route.Op // nil: none in flight
	step   int       // 0 to 3: push, pull, push, pull
	since  time.Time // when the step began
	first  []byte    // value after the first push

	slot   int       // of probeKeys; it determines the key
	failed int       // failed attempts in a row
	odd    *finding  // last result that fitted no handler
	odds   int       // number of such results
	again  time.Time // no attempt before
}

// finding is the result of an attempt: the values of the key after the two pushes.
type finding struct {
	first, second []byte
	values        pslite.DataType
}

const (
	// probeKeys is the number of keys that a host has for tests. Each attempt draws one: another
	// proxy of the host, which this one replaces, may still be testing, and must not use the same
	// key twice.
	probeKeys = 4096
	// probeStep is how long an answer may take.
	probeStep = 5 * time.Second
	// probePause is the pause after the first failure; it is doubled after each further one, up to
	// probePauses times.
	probePause  = 100 * time.Millisecond
	probePauses = 6
	// probeOdd is the number of results that fit no handler, without two being the same, after
	// which the handler counts as unknown to us.
	probeOdd = 8
)

// settleHandler reports whether it is known what the handler does, or that it will not be found
// out. Until then it drives the test, so it has to be called in each tick; the caller holds x.mu.
func (x *job) settleHandler() bool {
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
		switch worker, err := x.router.Mover(); {
		case err == nil:
			p.worker = worker
			x.ask()
		case staysFor(err) != "": // what one key shows need not be so for another app's or table's
			x.setHandler(migrate.Opaque)
		}
	}
	return x.handler != migrate.Unknown
}

// scratchKey returns the key of the current attempt. Hosts have disjoint ranges of probeKeys keys,
// by their place among the workers' hosts.
func (x *job) scratchKey() uint64 {
	hosts := x.workerHosts()
	slices.Sort(hosts)
	host := max(0, slices.Index(slices.Compact(hosts), x.names()[0]))
	k := plan.HomeRange(int32(x.servers-1), x.servers)
	return min(k.Last, math.MaxUint64-1) - 1 - uint64(host*probeKeys+x.probe.slot)
}

// ask sends the push or pull of the current step.
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

// probed handles the answer of a step, and begins the next. It is called by the router, under x.mu.
func (x *job) probed() {
	p := x.probe
	op := p.op
	p.op = nil
	switch {
	case staysFor(op.Err) != "":
		x.setHandler(migrate.Opaque)
		return
	case op.Err != nil:
		x.probeFails(op.Err)
		return
	case p.step%2 == 1 && len(op.Values) != 1:
		x.probeFails(errors.New("the answer contains no value"))
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

// probeFails ends an attempt without a result, and schedules another on another key.
func (x *job) probeFails(why error) {
	p := x.probe
	x.jobs.log.Info("handler probe failed; it will be repeated with another scratch key", "job", x.name, "key", x.scratchKey(), "step", p.step, "error", why)
	p.again = time.Now().Add(probePause << min(p.failed, probePauses))
	p.failed++
	p.op, p.step = nil, 0
	p.slot = rand.IntN(probeKeys)
}

// found handles the result of an attempt.
func (x *job) found(f finding) {
	p := x.probe
	handler := judge(f.first, f.second, f.values)
	same := p.odd != nil && p.odd.values == f.values && bytes.Equal(p.odd.first, f.first) && bytes.Equal(p.odd.second, f.second)
	p.failed, p.step = 0, 0
	key := x.scratchKey()
	p.slot = rand.IntN(probeKeys)
	// A result that fits nothing is taken for the truth only if another key gives the same, or
	// after many that differ.
	if p.odds++; handler == migrate.Opaque && !same && p.odds < probeOdd {
		p.odd = &f // another process may have pushed to that key
		return
	}
	x.setHandler(handler)
	x.jobs.log.Info("handler detected with a scratch key", "job", x.name, "handler", x.handler, "key", key)
}

// judge returns the handler that gives these values, after a push of 1.5 to an unknown key and
// another one of 0.25. A server that adds may start from a value that is not 0, so only the
// difference counts there.
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
