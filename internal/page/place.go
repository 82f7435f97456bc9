package page

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
)

// clusterFrom returns the cluster that a query assumes; nil: the job's own.
func clusterFrom(v url.Values) (*FormCluster, error) {
	machines, err := number(v, "machines", 0, maxMachines)
	if err != nil {
		return nil, err
	}
	each, err := number(v, "each", 1, maxMachines)
	if err != nil {
		return nil, err
	}
	var speeds []float64
	if text := v.Get("link-speed"); text != "" {
		for part := range strings.SplitSeq(text, ",") {
			// ClusterOf checks the range; here it is only the form.
			speed, err := strconv.ParseFloat(part, 64)
			if err != nil {
				return nil, bad("link-speed=%.100q: want numbers, Mbit/s, separated by commas", text)
			}
			speeds = append(speeds, speed)
		}
	}
	on, err := ClusterOf(machines, each, speeds)
	if err != nil {
		return nil, bad("%v", err)
	}
	return on, nil
}

// ClusterOf returns a cluster of machines with each workers on every one, and with links of
// these speeds in Mbit/s; without speeds, links of the same unknown speed. For no machines it
// returns nil.
func ClusterOf(machines, each int, speeds []float64) (*FormCluster, error) {
	switch {
	case machines < 0 || each < 1 || max(machines, each) > maxMachines:
		return nil, fmt.Errorf("%d machines with %d workers each: want numbers above 0, up to %d", machines, each, maxMachines)
	case len(speeds) > 0 && len(speeds) != machines:
		return nil, fmt.Errorf("%d link speeds of %d machines: want one each, or none", len(speeds), machines)
	case machines == 0:
		return nil, nil
	}
	on := EvenCluster(machines, each)
	for i, speed := range speeds {
		// Written so that NaN fails.
		if !(speed > 0) || math.IsInf(speed, 0) {
			return nil, fmt.Errorf("the link speed of machine %d is %v Mbit/s: want a number above 0", i, speed)
		}
		on.Machines[i].Mbit = speed
	}
	return on, nil
}

// clusterOf returns where a job's workers and servers are and how fast the links there are. It
// has no machines if the workers' hosts are unknown, and no servers if any server's host is.
func clusterOf(state State, jobs []Job, job string) *FormCluster {
	c := &FormCluster{}
	// Machines are numbered in the order in which they appear.
	at := map[string]int{}
	machine := func(host string) int {
		m, ok := at[host]
		if !ok {
			m = len(c.Machines)
			at[host] = m
			c.Machines = append(c.Machines, FormMachine{Name: host})
		}
		return m
	}
	servers := map[int]int{}
	for _, j := range jobs {
		if j.Name != job {
			continue
		}
		for _, n := range j.Nodes {
			switch {
			// An unknown host is no machine.
			case n.Host == "":
			case n.Role == "worker":
				c.Machines[machine(n.Host)].Workers++
			case n.Role == "server" && n.Rank >= 0:
				servers[n.Rank] = machine(n.Host)
			}
		}
		c.Servers = byRank(servers, j.Servers)
	}
	if machines, _ := c.Workers(); machines == 0 {
		return &FormCluster{}
	}
	// Speeds count only where something crosses links.
	if len(at) > 1 {
		for _, h := range state.Agent().Hosts {
			if m, ok := at[h.Host]; ok && h.Machine != nil {
				c.Machines[m].Mbit = float64(h.Machine.LinkMbit)
			}
		}
	}
	return c
}

// byRank returns the machines of the servers by rank; nil if one is missing.
func byRank(servers map[int]int, n int) (all []int) {
	// Ranks are consecutive, so a missing one shows before the end.
	for rank := range len(servers) {
		m, ok := servers[rank]
		if !ok {
			return nil
		}
		all = append(all, m)
	}
	if n > 0 && len(all) != n {
		return nil
	}
	return all
}
