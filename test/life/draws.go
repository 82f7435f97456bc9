package life

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A choice is a kind of event: how often it is drawn compared with the others, and how. draw
// takes all that is random about the event from r and nothing from elsewhere, so that a seed
// repeats.
type choice struct {
	weight int
	draw   func(r *rand.Rand) event
}

// anyHost draws a host.
func anyHost(r *rand.Rand) int { return r.IntN(hostCount) }

// both returns agent and proxy of a host.
func both(host int) []target { return []target{{agent, host}, {proxy, host}} }

// sidecars returns agents and proxies of all hosts.
func sidecars() (all []target) {
	for host := range hostCount {
		all = append(all, both(host)...)
	}
	return all
}

// everything returns all services.
func everything() []target { return append(sidecars(), target{of: planner}) }

// toServices returns what may happen to processes and to what they keep, by time: only what is
// in order in gentle seasons, anything in the others.
func toServices(upgraded bool) func(at time.Duration) []choice {
	mild := slices.Clone(inOrder)
	if upgraded {
		mild = append(mild, upgrades...)
	}
	all := slices.Concat(mild, abrupt)
	return func(at time.Duration) []choice {
		if gentle(at) {
			return mild
		}
		return all
	}
}

// inOrder is what no job may notice, but for a step that takes longer.
var inOrder = []choice{
	{3, func(r *rand.Rand) event { return kill{target{agent, anyHost(r)}, r.IntN(10) < 7} }},
	{1, func(r *rand.Rand) event { return kill{target{of: planner}, r.IntN(10) < 7} }},
	{2, func(r *rand.Rand) event {
		return stop{target{agent, anyHost(r)}, between(r, time.Second, 6*time.Second)}
	}},
	{1, func(r *rand.Rand) event { return stop{target{of: planner}, between(r, time.Second, 8*time.Second)} }},
	{5, func(r *rand.Rand) event { return replace{proxy, []target{{proxy, anyHost(r)}}, false} }},
	{3, func(r *rand.Rand) event { return replace{agent, []target{{agent, anyHost(r)}}, false} }},
	{1, func(*rand.Rand) event { return replace{planner, []target{{of: planner}}, false} }},
	{3, func(r *rand.Rand) event {
		host := anyHost(r)
		return replace{"proxy, then agent", []target{{proxy, host}, {agent, host}}, false}
	}},
	{3, func(r *rand.Rand) event { return replace{"both", both(anyHost(r)), true} }},
}

// upgrades are in order, too. They are drawn only in a life that is to have them, since with
// them a seed draws other events.
var upgrades = []choice{
	{3, func(r *rand.Rand) event { return rise{r.Perm(hostCount)[:1+r.IntN(hostCount)]} }},
	{1, func(*rand.Rand) event { return upgrade{} }},
	{2, func(r *rand.Rand) event { return leave{between(r, time.Second, 6*time.Second)} }},
}

// abrupt is what a job without PS_RESEND may not survive.
var abrupt = []choice{
	{10, func(r *rand.Rand) event { return kill{target{proxy, anyHost(r)}, r.IntN(10) < 7} }},
	{4, func(r *rand.Rand) event {
		host := anyHost(r)
		return killMany{fmt.Sprintf("agent and proxy on host%d", host), both(host)}
	}},
	{2, func(*rand.Rand) event { return killMany{"everything", everything()} }},
	{4, func(r *rand.Rand) event {
		return stop{target{proxy, anyHost(r)}, between(r, time.Second, 6*time.Second)}
	}},
	{4, func(r *rand.Rand) event { return damage{anyHost(r), r.Uint64(), r.IntN(2) == 0} }},
	{2, func(*rand.Rand) event { return loseStore{} }},
}

// toSurroundings is what happens around the fleet: to links, disks, clocks and processors.
var toSurroundings = []choice{
	{5, func(r *rand.Rand) event { return cut{anyHost(r), between(r, 300*time.Millisecond, 3*time.Second)} }},
	{3, func(r *rand.Rand) event { return fill{anyHost(r), between(r, 2*time.Second, 10*time.Second)} }},
	{1, func(r *rand.Rand) event { return fill{-1, between(r, 2*time.Second, 10*time.Second)} }},
	{3, func(r *rand.Rand) event {
		t := target{[]string{agent, proxy, planner}[r.IntN(3)], anyHost(r)}
		ahead := []time.Duration{-48 * time.Hour, -time.Minute, -5 * time.Second, 10 * time.Second, time.Hour, 400 * 24 * time.Hour}[r.IntN(6)]
		return setClock{t, ahead, between(r, 2*time.Second, 10*time.Second)}
	}},
	{2, func(r *rand.Rand) event { return load{between(r, 2*time.Second, 8*time.Second)} }},
}

// toPlanner is what operators ask for, for the job of a slot.
var toPlanner = []choice{
	{3, func(r *rand.Rand) event {
		return order{slot: r.IntN(slots), args: []string{"restore", "--wait", "20s"}}
	}},
	{3, func(r *rand.Rand) event {
		return order{slot: r.IntN(slots), args: []string{"plan", "rollback", "--wait", "20s"}}
	}},
	{6, func(r *rand.Rand) event { return order{slot: r.IntN(slots), args: []string{"plan", "apply"}} }},
	{2, func(r *rand.Rand) event { return order{slot: r.IntN(slots), args: []string{"plan", "show"}} }},
	{3, func(r *rand.Rand) event {
		return order{slot: r.IntN(slots), args: []string{"plan", "codecs", "set", "--unchanged", "--ahead", "--act"}}
	}},
	{2, func(r *rand.Rand) event {
		return order{slot: r.IntN(slots), args: []string{"plan", "codecs", "set", "--keys", fmt.Sprintf("0-%d", r.Uint64()>>1), "--off", "--ahead", "--act"}}
	}},
	// Only there: jobs of the other slots compare sums.
	{3, func(r *rand.Rand) event { return order{slot: lossySlot, args: lossy(r), lossy: 1} }},
	{4, func(r *rand.Rand) event {
		return order{slot: r.IntN(slots), args: []string{"plan", "codecs", "clear", "--act"}, lossy: -1}
	}},
}

// lossy returns a command that sets rules by which values are left out of pushes.
func lossy(r *rand.Rand) []string {
	how := [][]string{{"--threshold", "0.5"}, {"--quantize", "8"}, {"--threshold", "0.5", "--quantize", "8"}}[r.IntN(3)]
	return append(append([]string{"plan", "codecs", "set"}, how...), "--ahead", "--act")
}
