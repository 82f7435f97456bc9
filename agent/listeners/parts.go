package listeners

import (
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/internal/handover"
)

const (
	// mostPartJobs bounds the jobs of which part keys are remembered, mostPartRanges the ranges of each.
	mostPartJobs   = 64
	mostPartRanges = 1 << 14
)

// parts are the keys that proxies have named as parts of others. None is forgotten while its job is remembered: an
// answer that is late may have it. The zero value is empty and ready.
type parts struct {
	mu   sync.Mutex                              // guards the rest
	jobs map[netip.AddrPort][]handover.PartRange // by the scheduler's address
}

// addRanges notes what a proxy has named. What exceeds the bounds is dropped: those keys count as keys of their own.
func (p *parts) addRanges(scheduler string, ranges []handover.PartRange) {
	job, err := netip.ParseAddrPort(scheduler)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.jobs == nil {
		p.jobs = map[netip.AddrPort][]handover.PartRange{}
	}
	if _, known := p.jobs[job]; !known && len(p.jobs) >= mostPartJobs {
		for other := range p.jobs { // any: most are over
			delete(p.jobs, other)
			break
		}
	}
	all := p.jobs[job]
	if len(all)+len(ranges) > mostPartRanges {
		return
	}
	// Copied: readers have the slice before.
	p.jobs[job] = append(all[:len(all):len(all)], ranges...)
}

// PartKeys returns the ranges of keys that are parts of other keys of a job, whose scheduler's address is given,
// without those that have been named first, of which known are known already.
func (l *Listeners) PartKeys(job netip.AddrPort, known int) []handover.PartRange {
	l.parts.mu.Lock()
	defer l.parts.mu.Unlock()
	all := l.parts.jobs[job]
	return all[min(known, len(all)):]
}
