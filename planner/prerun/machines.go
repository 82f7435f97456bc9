package prerun

import (
	"fmt"
	"slices"
)

// A Host is a machine as the planner knows it from its agent.
type Host struct {
	Name     string
	LinkMbit uint32 // speed of its link; 0: not known
	Cores    int    // 0: not known
}

// Machines returns the hosts of a run, the i-th of which is machine i: those named, in that order,
// or all known hosts in the given order if there are no names. The number must be k. A name may
// occur twice, for a host with two machines.
func Machines(known []Host, names []string, k int) ([]Host, error) {
	if len(names) == 0 {
		// Without names the order is the planner's, so the number of hosts must fit exactly: a
		// shard on the wrong machine would only cost speed, but silently.
		if len(known) != k {
			return nil, fmt.Errorf("the planner knows %d hosts, the run has %d machines: name its hosts, in the order of the machines", len(known), k)
		}
		return known, nil
	}
	if len(names) != k {
		return nil, fmt.Errorf("%d hosts are named, the run has %d machines", len(names), k)
	}
	hosts := make([]Host, k)
	for i, name := range names {
		at := slices.IndexFunc(known, func(h Host) bool { return h.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("no host %q reports to the planner", name)
		}
		hosts[i] = known[at]
	}
	return hosts, nil
}

// LinkSpeeds returns the speed of each host's link. An unknown one is assumed to be the mean of the
// others; nil if none is known.
func LinkSpeeds(hosts []Host) []float64 {
	return shares(hosts, func(h Host) float64 { return float64(h.LinkMbit) })
}

// Capacities returns each host's share of the samples by its number of cores, with the same rule
// for unknown ones.
func Capacities(hosts []Host) []float64 {
	return shares(hosts, func(h Host) float64 { return float64(h.Cores) })
}

// shares returns of for each host, with unknown values (0) replaced by the mean of the known ones.
func shares(hosts []Host, of func(Host) float64) []float64 {
	all := make([]float64, len(hosts))
	known, sum := 0, 0.0
	for i, h := range hosts {
		if all[i] = of(h); all[i] > 0 {
			known++
			sum += all[i]
		}
	}
	// Nothing is known, so all are alike, which nil says.
	if known == 0 {
		return nil
	}
	for i, v := range all {
		if v == 0 {
			all[i] = sum / float64(known)
		}
	}
	return all
}
