package jobs

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// PartKeys are the part keys of a job's values that servers on this host hold, or have held. The agent counts
// what it sees of them as of the keys whose parts they are.
type PartKeys struct {
	Job    string
	Ranges []plan.PartRange // ascending
}

// mostPartRanges is about how many ranges of a job are named. Further part keys count as keys of their own.
const mostPartRanges = 4096

// partKeys is a job's PartKeys, of so many changes of a table and so many nodes on this host.
type partKeys struct {
	of             *route.Table
	changes, local int
	ranges         []plan.PartRange
}

// PartKeys returns the part keys of all jobs that have any on this host. The caller must not change them.
func (j *Jobs) PartKeys() (all []PartKeys) {
	for _, x := range j.allJobs() {
		if ranges := x.partRanges(); len(ranges) > 0 {
			all = append(all, PartKeys{x.name, ranges})
		}
	}
	return all
}

// partRanges returns the part keys that servers on this host hold.
func (x *job) partRanges() []plan.PartRange {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.router.Table()
	if !t.Parted() {
		return nil
	}
	changes := t.InParts()
	if x.partKeys.of == t && x.partKeys.changes == len(changes) && x.partKeys.local == len(x.local) {
		return x.partKeys.ranges
	}
	var ranges []plan.PartRange
	for _, r := range changes {
		for id := range x.local {
			if role, rank, ok := pslite.Rank(id); ok && role == pslite.Server {
				ranges = append(ranges, plan.PartRanges(r, int32(rank), x.servers)...)
			}
		}
		if len(ranges) >= mostPartRanges {
			break
		}
	}
	x.partKeys = partKeys{t, len(changes), len(x.local), joinPartRanges(ranges)}
	return x.partKeys.ranges
}

// joinPartRanges sorts ranges, and joins neighbours.
func joinPartRanges(ranges []plan.PartRange) (joined []plan.PartRange) {
	slices.SortFunc(ranges, func(a, b plan.PartRange) int { return cmp.Compare(a.First, b.First) })
	for _, r := range ranges {
		if n := len(joined); n > 0 {
			last := &joined[n-1]
			if r.First == last.Last+1 && r.Whole == last.Whole+last.Len() {
				last.Last = r.Last
				continue
			}
		}
		joined = append(joined, r)
	}
	return joined
}
