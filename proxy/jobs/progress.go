package jobs

import (
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// progress is what has become of one of the planner's batches. pending are the keys that are
// neither moved nor refused yet; without any the batch is done. job.mu guards it.
type progress struct {
	watch        int // the last Watch that has told it, by plans.watches
	moved, bytes uint64
	pending      uint64
	refused      map[string]*api.Refusal // by reason
	micros       []uint64                // how long each group took
	changed      bool                    // since the last report
}

// refuse notes that a number of keys will not move, with the reason and one of the keys.
func (p *progress) refuse(label, message string, keys, example uint64) {
	r := p.refused[label]
	if r == nil {
		r = &api.Refusal{Reason: label, Message: message, Example: example}
		p.refused[label] = r
	}
	r.Keys += keys
	p.changed = true
}

// refuse notes that keys of a group will not move; the caller holds x.mu. A group of beginParts is
// none of the planner's: it is not counted, and may be asked for again after a pause.
func (x *job) refuse(w *work, label, message string, keys int) {
	if w.plan == 0 {
		x.parting.pause(time.Now())
		return
	}
	x.refusedKeys += uint64(keys)
	p := x.batches[w.plan]
	if p == nil || keys == 0 {
		return
	}
	p.pending -= min(p.pending, uint64(keys))
	p.refuse(label, message, uint64(keys), w.keys[0])
}

// reports returns the progress that the planner does not have yet; the caller holds x.mu. Durations
// go as a histogram of distinct values. Batches that are done are forgotten.
func (x *job) reports() (all []*api.MoveReport) {
	for number, p := range x.batches {
		if !p.changed {
			continue
		}
		r := &api.MoveReport{Host: x.jobs.opts.Host, Job: x.name, Run: string(x.run), Batch: number, MovedKeys: p.moved, MovedBytes: p.bytes,
			PendingKeys: p.pending, Done: p.pending == 0, Handlers: x.handlers()}
		// Copies: the report is sent without x.mu, while more keys may be refused.
		for _, f := range p.refused {
			r.Refused = append(r.Refused, &api.Refusal{Reason: f.GetReason(), Message: f.GetMessage(), Keys: f.GetKeys(), Example: f.GetExample()})
		}
		slices.Sort(p.micros)
		for i := 0; i < len(p.micros); {
			end := i
			for end < len(p.micros) && p.micros[end] == p.micros[i] {
				end++
			}
			r.HeldMicros, r.HeldCount = append(r.HeldMicros, p.micros[i]), append(r.HeldCount, uint64(end-i))
			i = end
		}
		all = append(all, r)
		p.changed = false
		if r.Done {
			delete(x.batches, number)
		}
	}
	return all
}

// handlers returns what is known of the servers' handlers, for the planner.
func (x *job) handlers() (all []*api.Handler) {
	kind, message := api.Handler_UNKNOWN, "set --handler add or assign, or --allow-probe to detect it with a scratch key"
	switch x.handler {
	case migrate.Adds:
		kind, message = api.Handler_ADDS, "pushes are added"
	case migrate.Assigns:
		kind, message = api.Handler_ASSIGNS, "pushes are assigned"
	case migrate.Opaque:
		kind, message = api.Handler_OPAQUE, "keys can be placed before their first use (--placement), but not moved"
	}
	for r := range x.servers {
		all = append(all, &api.Handler{Server: int32(r), Kind: kind, Message: message})
	}
	return all
}

// ranges converts ranges of keys to the planner's form.
func ranges(keys []plan.Keys) (first, last []uint64) {
	for _, k := range keys {
		first, last = append(first, k.First), append(last, k.Last)
	}
	return first, last
}
