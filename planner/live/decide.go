package live

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plans"
)

// worthwhile is by which fraction a plan must lower the bytes of the busiest machine, or of all
// machines, to be proposed.
const worthwhile = 0.01

// A judge follows what comes of plans.
type judge struct {
	// The plan that is to be measured; 0 if there is none.
	epoch uint64
	// The number of its groups: see [dynamic.Epoch].
	groups int
	// The number of decisions left for which nothing is proposed, because proxies have refused all
	// of a plan.
	refused int
	// The most groups that the next plan may have; 0 means mostGroups.
	most int
}

// While a plan is carried out no other one is made, and other keys may become hot. What goes from
// one machine to another is moved together, so that a plan takes the time of its groups; one for
// workers that turn to each other's keys has few, however many keys it moves. If a plan took longer
// than planTakes, the next one has fewer groups, but at least fewGroups, which take as long as
// messages do. Workers that turn to other keys wait for the plan that is under way.
const (
	planTakes  = 1500 * time.Millisecond
	fewGroups  = 1 << 10
	mostGroups = 1 << 16
)

// learn adapts the size of plans to how long one of that many groups took. It shrinks in proportion
// and grows by doubling.
func (u *judge) learn(groups int, took time.Duration) {
	most := u.bound()
	switch {
	case took > planTakes && groups > fewGroups:
		most = max(min(most, int(float64(groups)*planTakes.Seconds()/took.Seconds())), fewGroups)
	case took < planTakes/2 && groups >= most/2:
		most *= 2
	}
	if u.most = most; most >= mostGroups {
		u.most = 0
	}
}

// bound returns how many groups the next plan may have.
func (u *judge) bound() int { return cmp.Or(u.most, mostGroups) }

// pardon is for how many decisions nothing is proposed after a plan that was refused as a whole.
// The cause, such as an unsuitable handler, rarely goes away by itself.
const pardon = 24

// otherServers is the trouble of a job whose agents report another number of servers than the run
// has whose owners are known.
const otherServers = "the job has restarted with a different number of servers, and no proxy has reported that run yet"

// decide makes one decision. base is what the job's machines move for other jobs, in bytes per
// step. trouble is the reason, for operators, if nothing can be planned; it is empty also if there
// is merely nothing to do. The caller holds j.mu.
func (j *job) decide(ctx context.Context, s *plans.Service, base []float64) (trouble string, err error) {
	j.follow(s.Run(j.name))
	if trouble := j.incomplete(); trouble != "" {
		return trouble, nil
	}
	if s.Lost(j.name) != "" {
		return "", nil
	}
	moving, _ := s.Busy(j.name)
	// Uses add up for the next decision. If there are too many to keep, the strategy must see them
	// now, although its moves cannot be used.
	if moving && j.small() {
		return "", nil // uses meanwhile count for the next decision
	}
	j.shifted, j.goesOn, j.decided = false, false, time.Now()
	fits := false
	// Items must be placed before uses are counted: with a former owner a use at the new one would
	// look remote.
	s.View(j.name, func(v plans.Where) {
		if fits = v.Servers == 0 || v.Servers == j.servers || v.Owners.Ranges() == 0; fits {
			j.place(v)
		}
	})
	if !fits {
		return otherServers, nil
	}
	j.makeRoom()
	j.turn++
	e := j.epoch()
	if len(e.Uses) == 0 {
		j.idle++
		j.show()
		return "", nil
	}
	e.Base = base
	j.pace.note(e.Steps, j.last, perStep(&j.items, e, len(j.hosts)))
	j.show()
	if err := j.review(ctx, s, e); err != nil {
		return "", err
	}
	if err := j.shaped(); err != nil {
		return "", err
	}
	// Without this a large plan would only hold up the next.
	e.MaxGroups, e.FewGroups = j.judge.bound(), fewGroups
	moves, err := j.strategy.Plan(&j.items, e)
	if err != nil {
		return "", err
	}
	if moving {
		return "", nil
	}
	if j.judge.refused > 0 {
		j.judge.refused--
		return "the proxies refused the whole last plan (see its reasons); the next one is made later", nil
	}
	return j.propose(ctx, s, e, moves)
}

// incomplete returns what must be known before anything can be planned, "" if all is known.
func (j *job) incomplete() string {
	if j.servers == 0 {
		return "the job's number of servers is not yet known"
	}
	var unknown []string
	for rank, host := range j.serves {
		if host == "" {
			unknown = append(unknown, fmt.Sprint(rank))
		}
	}
	switch {
	case len(unknown) > 0:
		return fmt.Sprintf("the hosts of servers %s are unknown: each host of the job needs an agent that reports to this planner", strings.Join(unknown, ", "))
	case len(j.hosts) < 2:
		return "all known nodes of the job are on one host: there is no traffic between hosts"
	}
	return ""
}

// small reports whether the uses since the last decision are few enough to wait in memory for the
// next one.
func (j *job) small() bool {
	uses := 0
	for _, w := range j.workers {
		uses += len(w.seen.all)
	}
	return uses < j.opts.MaxItems
}

// shaped gives the strategy the present machines and link speeds if they have changed. Locality
// keeps what it knows of items; any other strategy is made again.
func (j *job) shaped() error {
	speed := j.speeds()
	shape := fmt.Sprint(j.hosts, j.serves, speed)
	if j.strategy != nil && shape == j.shape {
		return nil
	}
	barred := make([]bool, len(j.hosts))
	for i, host := range j.hosts {
		barred[i] = !slices.Contains(j.serves, host)
	}
	if l, ok := j.strategy.(*dynamic.Locality); ok { // it keeps what it knows
		if err := l.Reshape(dynamic.Options{Machines: len(j.hosts), Barred: barred, Speed: speed}); err != nil {
			return err
		}
		j.shape = shape
		return nil
	}
	strategy, err := j.opts.strategy(len(j.hosts), barred, speed)
	if err != nil {
		return err
	}
	j.strategy, j.shape = strategy, shape
	return nil
}

// review measures the last plan once it has been carried out: the bytes that each machine has moved
// per step since the last decision, with the owners as they are now. A plan that was taken back or
// superseded is not measured.
func (j *job) review(ctx context.Context, s *plans.Service, e *dynamic.Epoch) error {
	if j.judge.epoch == 0 {
		return nil
	}
	info := s.Epoch(j.name, j.judge.epoch)
	switch {
	case info == nil || info.GetState() == api.Epoch_ROLLED_BACK || info.GetState() == api.Epoch_SUPERSEDED:
		j.judge.epoch = 0
		return nil
	case info.GetState() != api.Epoch_DONE:
		return nil
	}
	j.judge.learn(j.judge.groups, time.Duration(info.GetEndedUnixNanos()-info.GetAppliedUnixNanos()))
	if info.GetMovedKeys() == 0 && len(info.GetRefused()) > 0 {
		j.judge.epoch, j.judge.refused = 0, pardon
		return nil
	}
	actual := map[string]float64{}
	for i, bytes := range perStep(&j.items, e, len(j.hosts)) {
		actual[j.hosts[i]] = bytes
	}
	number := j.judge.epoch
	j.judge.epoch = 0
	return s.Measured(ctx, j.name, number, actual)
}

// propose submits the moves as a plan if they gain enough.
func (j *job) propose(ctx context.Context, s *plans.Service, e *dynamic.Epoch, moves []dynamic.Move) (trouble string, err error) {
	before, after := j.loads(e, moves)
	hosts, speed := make([]*api.HostLoad, len(j.hosts)), j.speeds()
	sum, sumAfter := 0.0, 0.0
	for i, name := range j.hosts {
		hosts[i] = &api.HostLoad{Host: name, Before: before[i], Predicted: after[i]}
		if speed != nil {
			hosts[i].LinkMbit = speed[i]
		}
		sum, sumAfter = sum+before[i], sumAfter+after[i]
	}
	most, busy := busiestOf(plus(before, e.Base), speed)
	then, busyThen := busiestOf(plus(after, e.Base), speed)
	groups, more := 0, false
	if l, ok := j.strategy.(*dynamic.Locality); ok {
		groups, more = l.Groups()
	}
	// A plan that is cut short gains only part of what the rest will.
	least := worthwhile
	if more { // others follow
		least *= float64(groups) / mostGroups
	}
	if busy-busyThen < least*busy && sum-sumAfter < least*sum {
		return "", nil
	}
	targets, migration := j.targets(moves)
	if len(targets) == 0 {
		return "", nil
	}
	number, err := s.Propose(ctx, plans.Proposal{
		Job: j.name, Run: j.run, Servers: j.servers, Targets: targets, Hosts: hosts, MigrationBytes: migration, HorizonSteps: j.opts.Horizon,
		Reason: fmt.Sprintf("%s moves %.0f bytes a step, would move %.0f; the busiest then %.0f", j.hosts[most], before[most], after[most], after[then]) +
			besides(e.Base, most) + sharedKeys(e, len(j.hosts)),
	})
	if err != nil || number == 0 {
		return "", err
	}
	j.judge.epoch, j.judge.groups = number, groups
	j.goesOn = more && s.Epoch(j.name, number).GetState() != api.Epoch_PROPOSED
	j.rests = groups > fewGroups
	return "", nil
}

// besides describes what a machine moves for other jobs, for the reason of a plan.
func besides(base []float64, machine int) string {
	if machine >= len(base) || base[machine] == 0 {
		return ""
	}
	return fmt.Sprintf(", beside %.0f of other jobs", base[machine])
}

// perStep returns the bytes that each machine moves in a step with the present owners.
func perStep(it *dynamic.Items, e *dynamic.Epoch, machines int) []float64 {
	loads := dynamic.Loads(it, e.Uses, machines)
	for i := range loads {
		loads[i] /= e.Steps
	}
	return loads
}

// loads returns the bytes that each machine moves in a step before and after the moves: as Locality
// estimates them, which averages over the past, else by the uses of this epoch.
func (j *job) loads(e *dynamic.Epoch, moves []dynamic.Move) (before, after []float64) {
	if l, ok := j.strategy.(*dynamic.Locality); ok {
		return l.Before(), l.Loads()
	}
	after = make([]float64, len(j.hosts))
	before = dynamic.Loads(&j.items, e.Uses, len(j.hosts))
	moved := dynamic.Items{Owner: slices.Clone(j.items.Owner)}
	for _, m := range moves {
		moved.Owner[m.Item] = m.To
	}
	for i, bytes := range dynamic.Loads(&moved, e.Uses, len(j.hosts)) {
		before[i] /= e.Steps
		after[i] = bytes / e.Steps
	}
	return before, after
}

// targets returns the moves as ranges of keys with the rank of their new owner, neighbouring keys
// joined, and the bytes that they move. On a machine with several servers a key goes to its home if
// that is one of them, else to one by its number.
func (j *job) targets(moves []dynamic.Move) (targets []plan.Range, migration float64) {
	ranks := make([][]int32, len(j.hosts))
	for rank, host := range j.serves {
		m := j.machine[host]
		ranks[m] = append(ranks[m], int32(rank))
	}
	for _, m := range moves {
		if len(ranks[m.To]) == 0 {
			continue // a host without a server
		}
		// The first push of a key may have been lost on the way, and a move begins with a pull.
		// A server without the key may make it then, with a length of its own, and refuse the
		// push that comes again. Where a worker goes on to use the key, the server has it.
		if j.varies && !j.twice[m.Item] {
			continue
		}
		key := j.keys[m.Item]
		to := ranks[m.To][key%uint64(len(ranks[m.To]))]
		if home := plan.HomeOf(key, j.servers); slices.Contains(ranks[m.To], home) {
			to = home
		}
		targets = append(targets, plan.Range{Keys: plan.One(key), Owner: to})
		migration += float64(j.items.Size[m.Item])
	}
	slices.SortFunc(targets, func(a, b plan.Range) int { return cmp.Compare(a.First, b.First) })
	joined := targets[:0]
	for _, t := range targets {
		if n := len(joined); n > 0 && joined[n-1].Last+1 == t.First && joined[n-1].Owner == t.Owner {
			joined[n-1].Last = t.Last
			continue
		}
		joined = append(joined, t)
	}
	return joined, migration
}

// busiestOf returns the machine whose link needs the longest for its bytes, and that time in
// arbitrary units. With speed nil all links are equally fast.
func busiestOf(bytes, speed []float64) (most int, busy float64) {
	for i, l := range bytes {
		if speed != nil {
			l /= speed[i]
		}
		if l > busy {
			most, busy = i, l
		}
	}
	return most, busy
}
