package history

import (
	"maps"
	"slices"
	"time"
)

// A Selection is the nodes whose figures are asked for: of no workers, or no
// servers, all of them.
type Selection struct{ Workers, Servers []string }

// Some reports whether not all nodes are asked for.
func (s Selection) Some() bool { return len(s.Workers)+len(s.Servers) > 0 }

// Pairs reports whether some workers' dealings with some servers are asked for, of
// which the bytes are known, but not how long requests took.
func (s Selection) Pairs() bool { return len(s.Workers) > 0 && len(s.Servers) > 0 }

// Worker reports whether a worker's figures are asked for.
func (s Selection) Worker(name string) bool {
	return len(s.Workers) == 0 || slices.Contains(s.Workers, name)
}

// Server reports whether a server's figures are asked for.
func (s Selection) Server(name string) bool {
	return len(s.Servers) == 0 || slices.Contains(s.Servers, name)
}

// A Part is what a selection did in a stretch of time that need not be a point's.
type Part struct {
	From, To time.Time
	Steps    map[string]float64 // by worker
	Servers  map[string]float64 // bytes to and from a server, by its name
	// Micros and Counts are the times of requests, as in Sums.
	Micros, Counts []uint64
}

// Among returns points with what a selection did in them in place of what all did,
// from parts in the order of time. A part is divided between points by how long it
// was of each; its requests are of the point in which its middle lies. Points of
// before the first part are left out. What left hosts is not known of a selection.
func Among(points []Point, parts []Part) []Point {
	if len(parts) == 0 {
		return nil
	}
	workers, servers := map[string]float64{}, map[string]float64{}
	for _, part := range parts {
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
		sum.Steps = Median(slices.Collect(maps.Values(steps)))
		sum.Busiest, sum.Mean = Load(slices.Collect(maps.Values(bytes)))
		out = append(out, sum)
	}
	return out
}

// in returns which share of the part's time is the point's.
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

// clearInto has sums know the names, with nothing.
func clearInto(sums, names map[string]float64) {
	for name := range names {
		sums[name] = 0
	}
}

func addShare(sums, more map[string]float64, share float64) {
	for name, n := range more {
		sums[name] += share * n
	}
}
