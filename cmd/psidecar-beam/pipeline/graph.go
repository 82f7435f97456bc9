package pipeline

import (
	"fmt"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"

	"github.com/psidecar/psidecar/planner/partition/blocks"
)

// LaneScope is in the names of all transforms of a lane, in front of its number. Package launch
// finds them by it.
const LaneScope = "lane "

// Build adds the whole partition to p, for the shards. It runs nothing. c is valid.
//
// An engine such as Flink divides the elements of each collection among its workers, and needs
// one lane. Prism, the engine in Beam's Go SDK, gives all that is there to one worker: for it
// each step is there once for each lane, for a worker of its own.
//
// The graph has no loop, as Beam has none: all waves and passes are unrolled. Lists of blocks
// outlive the step in which their blocks were assigned, since the buckets need the newest of
// every block in each step.
func Build(p *beam.Pipeline, c Config, shards []string) {
	g := &builder{Config: c, root: p.Root()}
	all := make([]Shard, len(shards))
	for i, path := range shards {
		all[i] = Shard{i, path}
	}
	g.read(all)
	rows := g.eachLane("load", func(s beam.Scope, lane int) []flow {
		if lane >= len(all) {
			return []flow{make(flow, c.Lanes)} // no shard for it
		}
		return g.route(s, beam.ParDo(s, &loadFn{Config: c}, g.shards[lane], g.side()), 1)
	})
	formed := g.form(rows[0])
	var state, lists [blocks.Colors]flow // of assigned blocks
	for color := range state {
		state[color], lists[color] = make(flow, c.Lanes), make(flow, c.Lanes)
	}
	for wave := range blocks.Waves {
		// What a wave's blocks ask is added to what all blocks of earlier waves have said.
		asked := joined(append([]flow{formed[blocks.Waves+wave]}, lists[:]...)...)
		out := g.step(fmt.Sprintf("wave %d", wave), &bucketFn{Config: c, First: true, Wave: wave}, formed[wave], asked)
		for color := range state {
			state[color] = joined(state[color], out[color])
			lists[color] = joined(lists[color], out[blocks.Colors+color])
		}
	}
	for i := range c.Passes * blocks.Colors {
		color := i % blocks.Colors
		out := g.step(fmt.Sprintf("pass %d color %d", i/blocks.Colors, color), &bucketFn{Config: c, Color: color}, state[color], joined(lists[:]...))
		// Each step emits only its own color.
		state[color], lists[color] = out[color], out[blocks.Colors+color]
	}
	g.finish(joined(state[:]...), joined(lists[:]...))
}

// A flow is the collections that go to each lane. They are flattened where they are grouped.
type flow [][]beam.PCollection

// joined returns a flow with all collections of several, of which there is at least one.
func joined(flows ...flow) flow {
	all := make(flow, len(flows[0]))
	for _, f := range flows {
		for lane := range f {
			all[lane] = append(all[lane], f[lane]...)
		}
	}
	return all
}

// A builder adds the parts of the graph to a pipeline. read comes first; the others need what
// it sets.
type builder struct {
	Config
	root   beam.Scope         // of the pipeline
	shards []beam.PCollection // of each lane
	meta   beam.PCollection   // one string
}

// side returns the meta as the side input of a function.
func (g *builder) side() beam.Option { return beam.SideInput{Input: g.meta} }

// lane returns the scope in which the transforms of a step are that belong to a lane.
func (g *builder) lane(name string, lane int) beam.Scope {
	return g.root.Scope(name).Scope(fmt.Sprint(LaneScope, lane))
}

// eachLane calls do for each lane and returns the flows that it made, joined over the lanes. do
// returns the same number of flows each time.
func (g *builder) eachLane(name string, do func(s beam.Scope, lane int) []flow) []flow {
	var all []flow
	for lane := range g.Lanes {
		for i, f := range do(g.lane(name, lane), lane) {
			if lane == 0 {
				all = append(all, make(flow, g.Lanes))
			}
			all[i] = joined(all[i], f)
		}
	}
	return all
}

// route returns the flow of each class of what a function emits, with the route taken off the
// keys.
func (g *builder) route(s beam.Scope, col beam.PCollection, classes int) []flow {
	flows := make([]flow, classes)
	routes := []beam.PCollection{col}
	// A partition into one would be a step for nothing.
	if classes*g.Lanes > 1 {
		routes = beam.Partition(s, classes*g.Lanes, classOf, col)
	}
	for i, to := range routes {
		flows[i/g.Lanes] = append(flows[i/g.Lanes], []beam.PCollection{beam.ParDo(s, shed, to)})
	}
	return flows
}

// group returns what comes to a lane, by key. It flattens nothing where there is one
// collection, to keep the graph small.
func (g *builder) group(s beam.Scope, in []beam.PCollection) beam.PCollection {
	if len(in) == 1 {
		return beam.GroupByKey(s, in[0])
	}
	return beam.GroupByKey(s, beam.Flatten(s, in...))
}

// read adds the shards and, after the first reading, the meta. The shards of each lane stay a
// collection, for the second reading.
func (g *builder) read(all []Shard) {
	s := g.root.Scope("shards")
	var counts []beam.PCollection
	for lane := range g.Lanes {
		var own []Shard
		for i := lane; i < len(all); i += g.Lanes {
			own = append(own, all[i])
		}
		if len(own) == 0 {
			// The lanes after this one have none either.
			break
		}
		// Without it an engine fuses the list with its readers, and one worker reads all
		// shards.
		shards := beam.Reshuffle(s, beam.CreateList(s, own))
		g.shards = append(g.shards, shards)
		counts = append(counts, beam.ParDo(g.lane("count", lane), &countFn{Config: g.Config}, shards))
	}
	g.meta = beam.ParDo(s.Scope("plan"), &planFn{Config: g.Config, Shards: len(all)}, g.group(s, counts))
}

// form adds the making of blocks. It returns a flow of blocks for each wave and then one of
// their lists for each wave.
func (g *builder) form(rows flow) []flow {
	return g.eachLane("form", func(s beam.Scope, lane int) []flow {
		state, lists := beam.ParDo2(s, &formFn{Config: g.Config}, g.group(s, rows[lane]), g.side())
		return append(g.route(s, state, blocks.Waves), g.route(s, lists, blocks.Waves)...)
	})
}

// step adds a step that assigns the blocks in state: tell makes the buckets reply to them by
// lists. It returns a flow of blocks for each color and then one of their lists for each color.
func (g *builder) step(name string, tell *bucketFn, state, lists flow) []flow {
	replies := g.eachLane(name+", buckets", func(s beam.Scope, lane int) []flow {
		return g.route(s, beam.ParDo(s, tell, g.group(s, lists[lane]), g.side()), 1)
	})
	in := joined(state, replies[0])
	return g.eachLane(name+", blocks", func(s beam.Scope, lane int) []flow {
		state, lists := beam.ParDo2(s, &blockFn{Config: g.Config}, g.group(s, in[lane]), g.side())
		return append(g.route(s, state, blocks.Colors), g.route(s, lists, blocks.Colors)...)
	})
}

// finish adds the writing of the outcome from the blocks and lists of all colors.
func (g *builder) finish(state, lists flow) {
	var reports []beam.PCollection
	owned := g.eachLane("owners", func(s beam.Scope, lane int) []flow {
		parts, report := beam.ParDo2(s, &ownFn{Config: g.Config}, g.group(s, lists[lane]), g.side())
		reports = append(reports, report)
		return g.route(s, parts, 1)
	})
	placed := g.eachLane("samples", func(s beam.Scope, lane int) []flow {
		return g.route(s, beam.ParDo(s, &samplesFn{Config: g.Config}, beam.Flatten(s, state[lane]...), g.side()), 1)
	})
	parts := joined(owned[0], placed[0])
	for lane := range g.Lanes {
		s := g.lane("write", lane)
		reports = append(reports, beam.ParDo(s, &writeFn{Config: g.Config}, g.group(s, parts[lane]), g.side()))
	}
	s := g.root.Scope("finish")
	beam.ParDo(s, &finishFn{Config: g.Config}, g.group(s, reports), g.side())
}
