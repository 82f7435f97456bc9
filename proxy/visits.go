package proxy

import (
	"net/netip"
	"sync"
)

// Bounds of links between sites: a proxy has one to each address of a job that
// is not its own, and a second while it is replaced.
const (
	maxVisits       = 1024
	visitsPerSource = 256
)

// visits counts links between sites, by source. The zero value has none.
type visits struct {
	mu      sync.Mutex
	all     int
	sources map[netip.Prefix]int // none is 0
}

// begin takes one in, or not.
func (v *visits) begin(source netip.Prefix) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all >= maxVisits || v.sources[source] >= visitsPerSource {
		return false
	}
	if v.sources == nil {
		v.sources = map[netip.Prefix]int{}
	}
	v.all++
	v.sources[source]++
	return true
}

func (v *visits) end(source netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all--
	if v.sources[source]--; v.sources[source] == 0 {
		delete(v.sources, source)
	}
}
