package jobs

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/route"
)

// copied is this host's copy of a run's table at the planner.
type copied struct {
	table   *route.Table
	pieces  []plan.Range // of a snapshot that is incomplete; table is nil then
	stores  []string     // ids: the planner's store, then those that it continues
	version uint64
	mark    uint64 // of the version, as the planner gave it; 0: unknown
}

// beginCopies prepares for the events of a new Watch. Copies of the previous one stay in before
// until this one has listed everything: the planner may confirm them (Kept) instead of sending them
// again.
func (p *plans) beginCopies() {
	for k, c := range p.tables {
		if c.table != nil {
			p.before[k] = c
		}
	}
	clear(p.tables)
	p.watches++
}

// copyOf returns the complete copy of a run's table, or nil.
func (p *plans) copyOf(k runKey) *copied {
	if c := p.tables[k]; c != nil && c.table != nil {
		return c
	}
	return p.before[k]
}

// kept takes up a copy that the planner has confirmed.
func (p *plans) kept(e *api.PlanEvent) error {
	k := runKey{e.GetJob(), plan.Run(e.GetRun())}
	// The planner confirms a version only if this proxy has named it in its request, so anything
	// else is a fault of one of them. The Watch then ends, and the next one gets snapshots.
	c := p.before[k]
	if c == nil || c.version != e.GetKept().GetVersion() {
		return fmt.Errorf("the planner continues from version %d of job %s, which this proxy does not have", e.GetKept().GetVersion(), e.GetJob())
	}
	c.stores = e.GetKept().GetStores()
	p.tables[k] = c
	p.saw(e, c)
	return nil
}

// snapshot adds one piece of a run's snapshot to its copy. The first piece drops the earlier table,
// and there is none until the last piece has come, so that nobody sees half of it.
func (p *plans) snapshot(e *api.PlanEvent) error {
	s := e.GetSnapshot()
	ranges, err := displaced(s.GetDisplaced())
	if err != nil {
		return err
	}
	k := runKey{e.GetJob(), plan.Run(e.GetRun())}
	c := p.tables[k]
	if c == nil || s.GetFirst() {
		c = &copied{}
		p.tables[k] = c
	}
	c.pieces = append(c.pieces, ranges...)
	// Without the number of servers no key has a home, and no table can be made.
	if s.GetLast() && e.GetServers() > 0 {
		c.table = route.NewTable(int(e.GetServers()))
		c.table.Set(c.pieces)
		c.pieces, c.stores, c.version, c.mark = nil, s.GetStores(), s.GetVersion(), s.GetMark()
		p.saw(e, c)
	}
	return nil
}
