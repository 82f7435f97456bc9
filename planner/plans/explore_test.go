package plans

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// action is something that can happen in a world.
type action struct {
	name string
	// calls says that the planner may write, so that it can be killed, and the write fail.
	calls bool
	// calm says that it needs nothing to go wrong, and no operator.
	calm bool
	do   func(w *world) (failure string)
}

// actions returns what can happen.
func (w *world) actions() (all []action) {
	add := func(calls, calm bool, do func(w *world) string, format string, args ...any) {
		all = append(all, action{fmt.Sprintf(format, args...), calls, calm, do})
	}
	// command is an operator's, who may not learn what became of it.
	command := func(left int, spend func(b *budget), r *api.ActRequest, format string, args ...any) {
		if left > 0 {
			add(true, false, func(w *world) string {
				spend(&w.budget)
				r.Job = testJob
				_, _ = w.s.Act(context.Background(), r)
				return ""
			}, format, args...)
		}
	}
	b := w.budget
	command(b.Restore, func(b *budget) { b.Restore-- }, &api.ActRequest{Action: api.ActRequest_RESTORE}, "restore")
	command(b.Rollback, func(b *budget) { b.Rollback-- }, &api.ActRequest{Action: api.ActRequest_ROLLBACK}, "rollback")
	if e := w.job().newest(api.Epoch_PROPOSED); e != nil {
		command(b.Apply, func(b *budget) { b.Apply-- }, &api.ActRequest{Action: api.ActRequest_APPLY, Epoch: e.info.GetEpoch()}, "apply")
	}
	if b.Propose > 0 {
		add(true, false, func(w *world) string {
			w.budget.Propose--
			_, _ = w.s.Propose(context.Background(), w.proposal(w.budget.Propose+1))
			return ""
		}, "a proposal")
	}
	if e := w.job().moving; e != nil && (len(e.putOff) > 0 || len(e.open)+len(e.waiting) == 0) {
		add(true, true, func(w *world) string {
			w.job().moving.again = time.Time{}
			w.s.retry(context.Background())
			return ""
		}, "the planner tries again")
	}
	for i := range w.hosts {
		w.hostActions(i, add)
	}
	return all
}

func (w *world) hostActions(i int, add func(calls, calm bool, do func(w *world) string, format string, args ...any)) {
	h := &w.hosts[i]
	if h.watch == nil {
		add(false, true, func(w *world) string { return w.open(i) }, "host %d watches", i)
	} else {
		if len(h.inbox) > 0 {
			add(false, true, func(w *world) string {
				h := &w.hosts[i]
				e := h.inbox[0]
				h.inbox = h.inbox[1:]
				return w.hear(i, e)
			}, "host %d hears", i)
		}
		if w.budget.Break > 0 {
			add(false, false, func(w *world) string { w.budget.Break--; w.close(i); return "" }, "host %d: its Watch breaks", i)
		}
		if len(h.reports) > 0 {
			add(true, true, func(w *world) string {
				h := &w.hosts[i]
				r := h.reports[0]
				h.reports = h.reports[1:]
				w.s.Settle(context.Background(), r)
				return ""
			}, "host %d reports", i)
		}
	}
	if w.budget.Dies > 0 {
		add(false, false, func(w *world) string {
			w.budget.Dies--
			w.close(i)
			h := &w.hosts[i]
			h.moves = slices.DeleteFunc(slices.Clone(h.moves), func(m attempt) bool { return !m.sent })
			h.batches, h.reports, h.joins = nil, nil, true
			h.displaced, h.version, h.mark = plan.Owners{}, 0, 0
			return ""
		}, "host %d is killed", i)
	}
	listed := h.watch != nil && len(h.inbox) == 0 && !h.joins
	for n, b := range h.batches {
		for _, key := range keysIn(b) {
			if !w.moving(key) && w.owner[key] == b.GetFrom() && listed {
				add(false, true, func(w *world) string {
					h := &w.hosts[i]
					h.moves = append(slices.Clone(h.moves), attempt{batch: h.batches[n], key: key})
					return ""
				}, "host %d begins to move key %d for batch %x", i, key, b.GetBatch())
			}
		}
		if w.budget.Refuse > 0 {
			add(false, false, func(w *world) string {
				w.budget.Refuse--
				h := &w.hosts[i]
				h.finish(h.batches[n], &api.MoveReport{Refused: []*api.Refusal{{Reason: "busy", Keys: 1}}})
				return ""
			}, "host %d refuses batch %x", i, b.GetBatch())
		}
	}
	for n, m := range h.moves {
		// The records of a proxy that was killed arrive before the next one has learned where keys
		// are, or not at all.
		if h.joins {
			add(true, true, func(w *world) string {
				h := &w.hosts[i]
				w.record(i, n)
				h.moves = slices.DeleteFunc(slices.Clone(h.moves), func(o attempt) bool { return o.batch == m.batch && o.key == m.key })
				return ""
			}, "the record of the killed proxy of host %d of key %d arrives", i, m.key)
			add(false, true, func(w *world) string {
				h := &w.hosts[i]
				h.moves = slices.Delete(slices.Clone(h.moves), n, n+1)
				return ""
			}, "the record of the killed proxy of host %d of key %d is lost", i, m.key)
			continue
		}
		add(true, true, func(w *world) string { w.record(i, n); return "" }, "host %d records key %d with server %d", i, m.key, m.batch.GetTo())
		if !m.sent {
			add(false, true, func(w *world) string {
				h := &w.hosts[i]
				h.moves = slices.Delete(slices.Clone(h.moves), n, n+1)
				return ""
			}, "host %d gives up moving key %d", i, m.key)
		}
	}
}

// killed has the planner start again from what is on disk.
func (w *world) killed() (failure string) {
	for i := range w.hosts {
		w.hosts[i].watch, w.hosts[i].inbox = nil, nil
	}
	w.disk = w.disk.copy()
	s, err := start(w.disk)
	if err != nil {
		return fmt.Sprintf("the planner does not start: %v", err)
	}
	w.s = s
	if w.job() == nil {
		return "the planner does not know the run any more"
	}
	return ""
}

// after returns the worlds to which an action leads: one where all goes well, and those where the
// planner is killed within one of its writes, or the write fails.
func (w *world) after(a action, visit func(name string, calm bool, next *world, failure string)) {
	next := w.copy()
	failure := a.do(next)
	writes := next.disk.writes
	if failure == "" {
		failure = next.collect()
	}
	visit(a.name, a.calm, next, failure)
	if !a.calls {
		return
	}
	for at, n := range writes {
		for cut := range n + 1 {
			if w.budget.Kill > 0 {
				next := w.copy()
				next.disk.at, next.disk.cut, next.disk.kills = at, cut, true
				next.budget.Kill--
				if failure = a.do(next); failure == "" {
					failure = next.killed()
				}
				visit(fmt.Sprintf("%s, and the planner is killed after %d of %d entries of write %d", a.name, cut, n, at), false, next, failure)
			}
			if w.budget.Fail > 0 {
				next := w.copy()
				next.disk.at, next.disk.cut = at, cut
				next.budget.Fail--
				failure = a.do(next)
				next.disk.at = -1
				if failure == "" {
					failure = next.collect()
				}
				visit(fmt.Sprintf("%s, and write %d fails after %d of %d entries", a.name, at, cut, n), false, next, failure)
			}
		}
	}
}

// check returns what is wrong in a world.
func (w *world) check() string {
	j := w.job()
	fresh, err := start(w.disk.copy())
	if err != nil {
		return fmt.Sprintf("a planner that starts from the disk: %v", err)
	}
	f := fresh.runs[j.key()]
	if f == nil {
		f = newJob(fresh, j.key(), 2)
	}
	if ours, theirs := slices.Collect(j.owners.All()), slices.Collect(f.owners.All()); !j.unsure && !slices.Equal(ours, theirs) {
		return fmt.Sprintf("the planner has %v displaced, its disk %v", ours, theirs)
	}
	if j.unsure {
		j = f
	}
	for key, k := range worldKeys {
		at := j.owners.Owner(k)
		if at == plan.Home {
			at = int32(key)
		}
		if !w.moving(key) && at != w.owner[key] {
			return fmt.Sprintf("key %d is with server %d, the planner has it with %d", key, w.owner[key], at)
		}
	}
	return w.checkEpochs(w.job())
}

// checkEpochs states what a command's end means, and what a number does.
func (w *world) checkEpochs(j *job) string {
	var last *epoch // that began
	for i, e := range j.epochs {
		switch state := e.info.GetState(); {
		case state == api.Epoch_MOVING && e != j.moving:
			return fmt.Sprintf("epoch %d is MOVING, and another one is carried out", e.info.GetEpoch())
		case state == api.Epoch_PROPOSED && i < len(j.epochs)-1:
			return fmt.Sprintf("epoch %d is PROPOSED, and not the last", e.info.GetEpoch())
		case state == api.Epoch_PROPOSED:
			var plan strings.Builder
			for _, b := range e.unsent() {
				fmt.Fprintf(&plan, "%v from %d to %d; ", b.GetFirst(), b.GetFrom(), b.GetTo())
			}
			if was := w.shown[e.info.GetEpoch()]; was != "" && was != plan.String() {
				return fmt.Sprintf("epoch %d was shown as %sand is %s", e.info.GetEpoch(), was, plan.String())
			}
			w.shown[e.info.GetEpoch()] = plan.String()
		}
		if e.info.GetAppliedUnixNanos() != 0 {
			last = e
		}
	}
	if last == nil || last.info.GetState() != api.Epoch_DONE || !last.commanded() {
		return ""
	}
	if !j.held {
		return "a command is done, and the job is not held"
	}
	if left := slices.Collect(j.owners.All()); last.info.GetRestores() && len(left) > 0 {
		return fmt.Sprintf("restore is done, and displaced is %v", left)
	}
	if back, err := j.takenBack(context.Background(), last.info.GetRollsBack()); err != nil || last.rollsBack() && len(back) > 0 {
		return fmt.Sprintf("epoch %d is rolled back, and %v are not (%v)", last.info.GetRollsBack(), back, err)
	}
	return ""
}

// ended reports whether nothing more happens by itself.
func (w *world) ended() bool {
	for i := range w.hosts {
		if h := &w.hosts[i]; h.watch == nil || h.joins || len(h.inbox)+len(h.batches)+len(h.reports)+len(h.moves) > 0 {
			return false
		}
	}
	return w.job().moving == nil
}

// explored is what a search has found.
type explored struct {
	worlds, ends int
	failure      string
}

// explore goes through the worlds that can be reached from the first, up to so many, and looks for
// one in which something is wrong, or from which no end can be reached though nothing more goes
// wrong.
func explore(first *world, most int) (found explored) {
	type reached struct {
		from int
		by   string
	}
	known := map[uint64]int{first.digest(): 0}
	how := []reached{{-1, "the first plan is carried out"}}
	back := [][]int{nil} // by world: those from which it is reached by something calm
	worlds := []*world{first}
	trace := func(at int) string {
		var taken []string
		for ; at >= 0; at = how[at].from {
			taken = append(taken, "  "+how[at].by)
		}
		slices.Reverse(taken)
		return strings.Join(taken, "\n")
	}
	var ends []int
	for at := 0; at < len(worlds) && found.failure == ""; at++ {
		w := worlds[at]
		worlds[at] = nil
		if w.ended() {
			ends = append(ends, at)
		}
		for _, a := range w.actions() {
			w.after(a, func(name string, calm bool, next *world, failure string) {
				d := next.digest()
				to, ok := known[d]
				if !ok && failure == "" {
					failure = next.check()
				}
				if failure != "" && found.failure == "" {
					found.failure = fmt.Sprintf("%s, after\n%s\n  %s", failure, trace(at), name)
				}
				if !ok {
					to = len(how)
					known[d] = to
					how, back, worlds = append(how, reached{at, name}), append(back, nil), append(worlds, next)
				}
				if calm {
					back[to] = append(back[to], at)
				}
			})
		}
		if len(how) > most {
			found.failure = fmt.Sprintf("there are more than %d worlds", most)
		}
	}
	found.worlds, found.ends = len(how), len(ends)
	if found.failure != "" {
		return found
	}
	leads := make([]bool, len(how))
	for next := ends; len(next) > 0; {
		at := next[len(next)-1]
		if next = next[:len(next)-1]; !leads[at] {
			leads[at] = true
			next = append(next, back[at]...)
		}
	}
	if at := slices.Index(leads, false); at >= 0 {
		found.failure = "the plan or command never ends, after\n" + trace(at)
	}
	return found
}

// TestExploreCommands goes through all interleavings of a plan of two moves with commands of
// operators and with what can go wrong: so many times the planner is killed within a write, or a
// write fails, so many Watches break, proxies are killed and batches refused. In each world the
// planner, its disk and the proxies agree on where keys are; a restore or rollback that is done
// stays true; a number stands for one plan; and what was begun can end. With PSIDECAR_EXPLORE=N also
// the large cases are searched, up to N worlds of each.
func TestExploreCommands(t *testing.T) {
	for _, c := range []struct {
		budget budget
		rarely bool // takes up to a minute
	}{
		{budget: budget{Restore: 1, Break: 1, Kill: 1}},
		{budget: budget{Restore: 1, Kill: 1, Fail: 1}},
		{budget: budget{Restore: 1, Refuse: 1, Break: 1}},
		{budget: budget{Restore: 1, Dies: 1, Break: 1}},
		{budget: budget{Rollback: 1, Kill: 1, Break: 1}},
		{budget: budget{Rollback: 1, Dies: 1, Refuse: 1}},
		{budget: budget{Propose: 1, Rollback: 1}},
		{budget: budget{Propose: 1, Apply: 1, Restore: 1}},

		{budget: budget{Restore: 1, Break: 1, Fail: 1}, rarely: true},
		{budget: budget{Restore: 1, Fail: 2}, rarely: true},
		{budget: budget{Restore: 1, Kill: 2}, rarely: true},
		{budget: budget{Restore: 1, Refuse: 2, Break: 1}, rarely: true},
		{budget: budget{Restore: 1, Refuse: 1, Fail: 1}, rarely: true},
		{budget: budget{Restore: 1, Dies: 1, Fail: 1}, rarely: true},
		{budget: budget{Restore: 1, Dies: 1, Kill: 1}, rarely: true},
		{budget: budget{Rollback: 1, Fail: 1, Kill: 1}, rarely: true},
		{budget: budget{Restore: 1, Rollback: 1, Kill: 1}, rarely: true},
		{budget: budget{Restore: 1, Rollback: 1, Fail: 1}, rarely: true},
		{budget: budget{Restore: 1, Rollback: 1, Break: 1}, rarely: true},
		{budget: budget{Propose: 1, Restore: 1, Kill: 1}, rarely: true},
		{budget: budget{Propose: 1, Restore: 1, Fail: 1}, rarely: true},
		{budget: budget{Propose: 1, Rollback: 1, Break: 1}, rarely: true},
		{budget: budget{Propose: 1, Rollback: 1, Fail: 1}, rarely: true},
		{budget: budget{Propose: 2, Apply: 1, Rollback: 1}, rarely: true},
	} {
		t.Run(fmt.Sprintf("%+v", c.budget), func(t *testing.T) {
			most := 50_000
			if c.rarely {
				text := require.Asked(t, "PSIDECAR_EXPLORE", "the number of worlds to visit at most")
				if n, err := strconv.Atoi(text); err != nil {
					t.Fatalf("PSIDECAR_EXPLORE=%q: want how many worlds to visit in each case", text)
				} else {
					most = n
				}
			}
			t.Parallel()
			began := time.Now()
			first := require.Value(newWorld(c.budget))(t)
			found := explore(first, most)
			if found.failure != "" {
				t.Fatal(found.failure)
			}
			t.Logf("complete: %d worlds, %d ends, %.1f s", found.worlds, found.ends, time.Since(began).Seconds())
		})
	}
}
