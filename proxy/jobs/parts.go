package jobs

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// expirePartAfter is how long a move of a key in parts, or into parts, may take. Its value is
// large, and so are the requests that must be answered first.
const expirePartAfter = 2 * time.Minute

// notePush shows a push to parting; the caller holds x.mu. Only the meta is at hand, so the size of
// a value is known only where all keys have the same or there is one key.
func (x *job) notePush(c *requests, m *pslite.Message) {
	n, size := m.Keys().Len(), int(m.Meta.DataSize)
	if x.jobs.opts.Parts == 0 || !m.Meta.Push || n == 0 || size < partFrom || len(m.Meta.DataTypes) > 2 && n > 1 {
		return
	}
	bytes := (size - 8*n) / n
	if len(m.Meta.DataTypes) > 2 {
		bytes -= 4
	}
	if bytes < partFrom {
		return
	}
	now := time.Now()
	for i := range n {
		x.parting.notePush(m.Keys().At(i), bytes, c.sender, now)
	}
}

// beginParts adds the moves that parting asks for to the work; the caller holds x.mu. They have
// plan 0, as no plan of the planner.
func (x *job) beginParts(now time.Time) {
	if x.jobs.opts.Parts == 0 || len(x.parting.values) == 0 || x.site == nil || !x.router.Ready() || x.run == "" {
		return
	}
	if gap := x.wholeBecause(); gap.Reason != "" {
		x.parting.off = gap
		x.dropParts()
		return
	}
	if x.jobs.plans == nil || !x.jobs.plans.connected() {
		return // later
	}
	busy := func(key uint64) bool {
		has := func(w *work) bool { return slices.Contains(w.keys, key) }
		if slices.ContainsFunc(x.work, has) {
			return true
		}
		for _, a := range x.underWay {
			if has(a.work) {
				return true
			}
		}
		return false
	}
	for _, m := range x.parting.next(now, x.servers, x.router.Table().Owner, x.moves, busy) {
		x.work = append(x.work, &work{from: m.from, to: m.to, keys: []uint64{m.key}, round: x.parting.round})
	}
}

// dropParts drops the moves of beginParts that have not begun; the caller holds x.mu. Parting asks
// for them again when it wants them.
func (x *job) dropParts() {
	x.work = slices.DeleteFunc(x.work, func(w *work) bool { return w.plan == 0 })
}

// wholeBecause returns why the job's values are left alone, and the zero value where they are not;
// the caller holds x.mu. Codecs that hold values back do not go together with parts: see
// migrate.ErrWaits.
func (x *job) wholeBecause() PartsGap {
	_, err := x.router.Mover()
	switch {
	case x.parting.off.Reason != "":
		return x.parting.off
	case x.servers < 2:
		return PartsGap{"one_server", "the job has only one server", "run it with more servers"}
	case x.unsupported != "":
		return PartsGap{"dialect", x.unsupported, ""}
	case staysFor(err) != "":
		return PartsGap{staysFor(err), err.Error(), ""}
	case x.handler == migrate.Unknown && x.jobs.opts.Probe:
	case x.handler != migrate.Adds:
		return PartsGap{"handler", "the servers' handler is " + x.handler.String(), "set --handler add if that is what they do, or --allow-probe to detect it"}
	case x.jobs.opts.Waits != nil && x.jobs.opts.Waits.Changes(x.name):
		return PartsGap{"values", "the job's values have rules (--threshold, --quantize, --unchanged or others)", "omit one of the two"}
	}
	return PartsGap{}
}

// partResult handles the outcome of a move of beginParts; the caller holds x.mu.
func (x *job) partResult(w *work, r *migrate.Result, took time.Duration) {
	m := partMove{w.keys[0], w.from, w.to}
	switch {
	case r.Err == nil:
		x.moved++
		x.movedBytes += r.Bytes
		x.parting.moved(m)
		x.jobs.log.Info("number of parts of a large value changed", "job", x.name, "key", m.key, "bytes", r.Bytes, "parts", plan.PartsOf(m.to), "seconds", took.Seconds())
		return
	case status.Code(r.Err) == codes.FailedPrecondition:
		x.parting.stop("restored", status.Convert(r.Err).Message(), "")
	case errors.Is(r.Err, migrate.ErrWaits):
		x.parting.stop("values", r.Err.Error(), "disable the codec that holds it back")
	case errors.Is(r.Err, migrate.ErrHandler):
		x.parting.stop("handler", r.Err.Error(), "")
	case staysFor(r.Err) != "":
		x.parting.stop(staysFor(r.Err), r.Err.Error(), "")
	case errors.Is(r.Err, errOver):
	default:
		x.parting.failed(time.Now(), w.round, r.Err)
		x.dropParts() // they would fail as well, and nothing moves before the pause is over
	}
	x.jobs.log.Info("a large value keeps its parts", "job", x.name, "key", m.key, "error", r.Err)
}

// expires returns how long a move may take before it is given up.
func (w *work) expires() time.Duration {
	if plan.PartsOf(w.from) > 0 || plan.PartsOf(w.to) > 0 {
		return expirePartAfter
	}
	return expireAfter
}

// groupOf returns how many keys of an owner move together: values in parts are large, and go one by
// one.
func groupOf(from int32) int {
	if plan.PartsOf(from) > 0 {
		return 1
	}
	return moveKeys
}

// partsState returns the state of values in parts, and nil where there are none and will be none;
// the caller holds x.mu.
func (x *job) partsState() *PartsState {
	table := x.router.Table()
	if x.jobs.opts.Parts == 0 && !table.Parted() {
		return nil
	}
	s := x.parting.state()
	if gap := x.wholeBecause(); gap.Reason != "" {
		s.Not = gap
	}
	if table.Parted() {
		table.All(func(r plan.Range) bool {
			if plan.PartsOf(r.Owner) > 0 {
				s.Keys += int(r.Len())
			}
			return true
		})
	}
	return &s
}
