package history

import (
	"maps"
	"slices"
	"time"
)

// A Selection is a set of nodes. No workers means all workers, no servers all servers.
type Selection struct{ Workers, Servers []string }

// Some reports whether the selection leaves nodes out.
func (s Selection) Some() bool { return len(s.Workers)+len(s.Servers) > 0 }

// Pairs reports whether it selects the exchange of some workers with some servers, for which
// bytes are known but not latencies.
func (s Selection) Pairs() bool { return len(s.Workers) > 0 && len(s.Servers) > 0 }

// Worker reports whether a worker is selected.
func (s Selection) Worker(name string) bool {
	return len(s.Workers) == 0 || slices.Contains(s.Workers, name)
}

// Server reports whether a server is selected.
func (s Selection) Server(name string) bool {
	return len(s.Servers) == 0 || slices.Contains(s.Servers, name)
}

// A Part is what the selected nodes did in a stretch of time, which need not coincide with a
// point's.
type Part struct {
	From, To time.Time
	Steps    map[string]float64 // by worker
	Servers  map[string]float64 // bytes to and from each server
	// Micros and Counts are the latencies, as in Sums.
	Micros, Counts []uint64
}

// Among returns points with the figures of a selection instead of those of all nodes, from
// parts in order of time. A part is divided among points in proportion to the time that it
// shares with each; its latencies, which cannot be divided, count in the point that has its
// middle. Points before the first part are left out. How many bytes left hosts is unknown for a
// selection.
func Among(points []Point, parts []Part) []Point {
	if len(parts) == 0 {
		return nil
	}
	workers, servers := map[string]float64{}, map[string]float64{}
	for _, part := range parts {
		// Every name that occurs must be in every point: a server without traffic lowers the
		// mean.
		clearInto(workers, part.Steps)
		clearInto(servers, part.Servers)
	}
	var out []Point
	for _, p := range points {
		if !p.To.After(parts[0].From) {
			continue
		}
		steps, bytes := maps.Clone(workers), maps.Clone(servers)
		sum := Point{From: p.From, To: p.To, Sums: Sums{Host: p.Host}}
		for _, part := range parts {
			if share := part.in(&p); share > 0 {
				addShare(steps, part.Steps, share)
				addShare(bytes, part.Servers, share)
			}
			if middle := part.From.Add(part.To.Sub(part.From) / 2); !middle.Before(p.From) && middle.Before(p.To) {
				sum.Micros, sum.Counts = Merged(sum.Micros, sum.Counts, part.Micros, part.Counts)
			}
		}
		for _, n := range bytes {
			sum.Bytes += n
		}
		// Of all selected workers, those without a step in this point included.
		sum.Steps = Median(slices.Collect(maps.Values(steps)))
		sum.Busiest, sum.Mean = Load(slices.Collect(maps.Values(bytes)))
		out = append(out, sum)
	}
	return out
}

// in returns the fraction of the part's time that lies in the point.
func (part *Part) in(p *Point) float64 {
	from, to := part.From, part.To
	if p.From.After(from) {
		from = p.From
	}
	if p.To.Before(to) {
		to = p.To
	}
	switch whole := part.To.Sub(part.From); {
	case to.After(from):
		return float64(to.Sub(from)) / float64(whole)
	case whole == 0 && !part.From.Before(p.From) && part.From.Before(p.To):
		return 1
	}
	return 0
}

// clearInto sets the entries of all names to 0.
func clearInto(sums, names map[string]float64) {
	for name := range names {
		sums[name] = 0
	}
}

// addShare adds a share of each figure of more.
func addShare(sums, more map[string]float64, share float64) {
	for name, n := range more {
		sums[name] += share * n
	}
}
