package fleet

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
)

// Keys implements page.State. The counts of a key are sums over the hosts that list it among their
// hottest; a host that does not list it may have used it too, so they are lower bounds.
func (s *State) Keys(job string, n int) (page.Keys, error) {
	reports, err := s.job(job)
	if err != nil {
		return page.Keys{}, err
	}
	workers := map[string]bool{}
	servers := 0
	for _, r := range reports {
		// Agents that have not seen the node table report no servers.
		servers = max(servers, int(r.GetServers()))
		for _, u := range r.GetUses() {
			workers[u.GetWorker()] = true
		}
	}
	// countWorkers indexes by these names, so they must be complete.
	k := page.Keys{Job: job, Workers: names(workers), Sketch: sketch(job, reports)}
	hot := hottest(reports)
	k.Skew = skew(reports, hot)
	// skew needs all of them; only then is the list cut.
	k.Hottest = hot[:min(n, len(hot), maxCells/max(len(k.Workers), 1))]
	countWorkers(k.Hottest, reports, k.Workers)
	if servers == 0 {
		return k, nil // the keys have no home yet
	}
	for i := range k.Hottest {
		// The server shown is the key's home, whether or not a plan has moved the key.
		if rank, ok := pslite.Owner(uint64(k.Hottest[i].Key), servers); ok {
			k.Hottest[i].Server = pslite.NodeName(pslite.ServerID(rank))
		}
	}
	return k, nil
}

// hottest merges the hottest keys of all hosts, most accessed first, without their accesses by
// worker.
func hottest(reports []*api.JobReport) []page.HotKey {
	hot := map[uint64]*page.HotKey{}
	for _, r := range reports {
		for _, key := range r.GetHottest() {
			e := hot[key.GetKey()]
			if e == nil {
				e = &page.HotKey{Key: page.Key(key.GetKey()), Text: page.Key(key.GetKey()).Text()}
				hot[key.GetKey()] = e
			}
			e.Accesses += key.GetAccesses()
			e.Pulls += key.GetPulls()
			e.Pushes += key.GetPushes()
			e.Bytes += key.GetBytes()
			e.Estimated += key.GetEstimated()
		}
	}
	list := make([]page.HotKey, 0, len(hot))
	for _, e := range hot {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(a, b page.HotKey) int {
		return cmp.Or(cmp.Compare(b.Accesses, a.Accesses), cmp.Compare(a.Key, b.Key))
	})
	return list
}

// countWorkers sets the keys' accesses by worker. workers are their columns, which must include every
// worker in the reports.
func countWorkers(hot []page.HotKey, reports []*api.JobReport, workers []string) {
	columns := make(map[string]int, len(workers))
	for i, worker := range workers {
		columns[worker] = i
	}
	rows := make(map[uint64][]uint64, len(hot))
	for i := range hot {
		hot[i].Workers = make([]uint64, len(workers))
		rows[uint64(hot[i].Key)] = hot[i].Workers
	}
	for _, r := range reports {
		for _, key := range r.GetHottest() {
			row := rows[key.GetKey()]
			// These are in the order of that report's uses, which differs from host to host.
			for i, used := range key.GetWorkers() {
				if row != nil && i < len(r.GetUses()) {
					row[columns[r.GetUses()[i].GetWorker()]] += used
				}
			}
		}
	}
}

// skew returns a curve, accesses over keys, that is nowhere above the true one. It has two parts,
// of which the better one counts at each number of keys: hosts' own curves merged as if no two
// hosts used the same key, and the hottest keys that hosts listed one by one, which are known to be
// the same.
func skew(reports []*api.JobReport, hot []page.HotKey) []page.SkewPoint {
	type stretch struct{ keys, accesses uint64 } // of one host's curve
	var stretches []stretch
	for _, r := range reports {
		// A curve is cumulative. Cut it into stretches between its points, each with accesses per
		// key that fall along the curve.
		var before page.SkewPoint
		for _, p := range r.GetSkew() {
			if p.GetKeys() > before.Keys && p.GetAccesses() >= before.Accesses {
				stretches = append(stretches, stretch{p.GetKeys() - before.Keys, p.GetAccesses() - before.Accesses})
				before = page.SkewPoint{Keys: p.GetKeys(), Accesses: p.GetAccesses()}
			}
		}
	}
	// The densest stretches of all hosts first: that is the curve of the union, if no key is in two
	// of them.
	slices.SortFunc(stretches, func(a, b stretch) int {
		return cmp.Compare(float64(b.accesses)/float64(b.keys), float64(a.accesses)/float64(a.keys))
	})
	curve := []page.SkewPoint{}
	var sum page.SkewPoint
	for _, s := range stretches {
		sum.Keys += s.keys
		sum.Accesses += s.accesses
		curve = append(curve, sum)
	}
	// With one report its own curve is exact already.
	if len(reports) > 1 {
		var head page.SkewPoint
		for _, k := range hot {
			head.Keys++
			head.Accesses += k.Accesses
			curve = append(curve, head)
		}
	}
	return envelope(curve)
}

// envelope drops the points that some point with fewer keys reaches or exceeds. The last point
// stays, since it has the number of all keys. Points of two lower bounds are merged this way: at
// each number of keys the higher one holds.
func envelope(points []page.SkewPoint) []page.SkewPoint {
	slices.SortFunc(points, func(a, b page.SkewPoint) int {
		return cmp.Or(cmp.Compare(a.Keys, b.Keys), cmp.Compare(b.Accesses, a.Accesses))
	})
	// The points are sorted by keys, so a point is exceeded only by one that is kept already.
	kept := points[:0]
	for i, p := range points {
		last := i == len(points)-1
		if len(kept) == 0 || p.Accesses > kept[len(kept)-1].Accesses || last && p.Keys > kept[len(kept)-1].Keys {
			kept = append(kept, p)
		}
	}
	return kept
}

// distinct returns the number of distinct keys of a job. If several hosts use keys it is a lower
// bound, and atLeast is set: the largest number of any host, or the sum over blocks of the largest
// number that any host has in that block.
func distinct(reports []*api.JobReport) (keys uint64, atLeast bool) {
	var grids []*page.Grid
	users := 0
	for _, r := range reports {
		// This host runs servers only, or its workers have used nothing yet.
		if r.GetDistinctKeys() == 0 {
			continue
		}
		users++
		keys = max(keys, r.GetDistinctKeys())
		if len(r.GetBlocks()) > 0 {
			// The first block is taken to begin at key 0, as in gridOf.
			g := &page.Grid{Firsts: []uint64{0}}
			for _, b := range r.GetBlocks()[1:] {
				g.Firsts = append(g.Firsts, b.GetFirst())
			}
			grids = append(grids, g)
		}
	}
	// Keys in different blocks are different, so the blocks' maxima add up.
	if users > 1 && len(grids) > 0 {
		sum := uint64(0)
		for _, n := range keysIn(reports, page.CommonEdges(grids)) {
			sum += n
		}
		keys = max(keys, sum)
	}
	return keys, users > 1
}

// sketch merges how precisely hosts count. A key's count is the sum of theirs, so its error bound
// is the sum of their bounds, and the probabilities that a bound is exceeded add up.
func sketch(job string, reports []*api.JobReport) page.Sketch {
	s := page.Sketch{Job: job, Exact: true, Percent: 100}
	s.DistinctKeys, s.AtLeast = distinct(reports)
	for _, r := range reports {
		k := r.GetSketch()
		s.Exact = s.Exact && k.GetExact()
		s.Blocks += int(k.GetBlocks())
		s.FoldedBlocks += int(k.GetFoldedBlocks())
		s.MemoryBytes += int(k.GetMemoryBytes())
		if !k.GetExact() {
			s.Bound += k.GetBound()
			// The union bound: the chance that any of the hosts exceeds its bound is at most the
			// sum of their chances.
			s.Percent = max(0, s.Percent-(100-k.GetPercent()))
		}
	}
	if s.Exact {
		s.Percent = 0 // as agents report it without a sketch
		s.ExactKeys = s.DistinctKeys
	}
	return s
}
