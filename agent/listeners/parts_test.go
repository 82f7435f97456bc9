package listeners

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/internal/handover"
)

// What proxies have named stays, within bounds, and is returned from where the caller knows it.
func TestPartKeysAreKept(t *testing.T) {
	var l Listeners
	job := netip.MustParseAddrPort("198.18.0.1:9000")
	l.parts.addRanges(job.String(), []handover.PartRange{{1, 2, 3}, {4, 5, 6}})
	l.parts.addRanges("no address", []handover.PartRange{{1, 2, 3}})
	first := l.PartKeys(job, 0)
	l.parts.addRanges(job.String(), []handover.PartRange{{7, 8, 9}})
	if len(first) != 2 || len(l.PartKeys(job, 2)) != 1 || l.PartKeys(job, 2)[0] != (handover.PartRange{7, 8, 9}) || len(l.PartKeys(job, 3)) != 0 || len(l.PartKeys(job, 9)) != 0 {
		t.Errorf("%v, then %v", first, l.PartKeys(job, 0))
	}
	l.parts.addRanges(job.String(), make([]handover.PartRange, mostPartRanges))
	if n := len(l.PartKeys(job, 0)); n != 3 {
		t.Errorf("%d ranges of one job", n)
	}
	for i := range 2 * mostPartJobs {
		l.parts.addRanges(fmt.Sprintf("198.18.0.2:%d", 1+i), make([]handover.PartRange, 1))
	}
	if n := len(l.parts.jobs); n != mostPartJobs {
		t.Errorf("part keys of %d jobs", n)
	}
}
