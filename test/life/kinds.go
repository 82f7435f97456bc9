package life

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/psidecar/psidecar/test/matrix/pattern"
)

// slots is the number of places where jobs run one after the other, each at one scheduler's
// address, so that a job finds what was kept of the one before.
const slots = 3

// lossySlot is the slot whose jobs may run under rules that leave values out. They are judged
// by what they have learned, never by sums.
const lossySlot = 2

// groups are the cgroups that agents watch. Two of them, so that one can be closed for
// displaced keys while the other's jobs go on.
var groups = []string{"job", "other"}

// groupOf returns the cgroup in which a slot's jobs run.
func groupOf(slot int) string {
	if slot == lossySlot {
		return groups[1]
	}
	return groups[0]
}

// portOf returns the port of a slot's scheduler.
func portOf(slot int) int { return 9091 + slot }

// spec is a job to run: a program with arguments, and how many nodes of it.
type spec struct {
	name             string
	model            string // of psjob's, or peer, or pattern
	servers, workers int
	args, env        []string // of workers; of all nodes
	ipv6             bool
	resend           bool
	drops            bool // it loses some of its messages by itself, and repeats them
	async            bool
	together         int // 1 + the host that all workers run on; 0: on as many as there are
}

// exact reports whether the job checks its values itself, to the last unit.
func (s spec) exact() bool {
	return s.model == "count" || s.model == "mix" || s.model == "peer" || s.model == "pattern"
}

// drawJob returns the nth job of a slot in a life with that seed. It depends on nothing else.
func drawJob(seed uint64, slot, n int) spec {
	r := rand.New(rand.NewPCG(seed, uint64(slot+1)<<32|uint64(n)))
	s := spec{servers: 1 + r.IntN(hostCount), workers: 2 + r.IntN(hostCount-1)}
	s.ipv6 = r.IntN(8) == 0
	// Every draw is made whether or not its result is used, in this order: another order would
	// give each seed other jobs.
	if r.IntN(2) == 0 {
		s.repeating(r)
	}
	// Without barriers between steps, losses depend on who is faster.
	s.async = r.IntN(3) == 0
	patterns := r.IntN(3) == 0
	switch pick := r.IntN(10); {
	case slot == lossySlot || slot == 1 && pick < 4:
		s.trained(r)
	case patterns:
		s.patterned(r)
	case pick < 8:
		s.counting(r)
	case pick < 9 && !s.resend: // an app's customers of one worker must not repeat alike
		s.mixing(r)
	default:
		s.peers(r)
	}
	if s.drops {
		s.shorten(whereDropped)
	}
	s.name = s.describe()
	return s
}

// calmJob returns a short job that every slot must be able to run when all is well.
func calmJob(slot int) spec {
	s := spec{name: "calm count", model: "count", servers: hostCount, workers: hostCount,
		args: []string{"--model", "count", "--count-keys", "2000", "--count-batch", "100", "--steps", "60"}}
	if slot == lossySlot {
		s = spec{name: "calm dlrm", model: "dlrm", servers: hostCount, workers: hostCount, args: append(dlrm("--steps", "60"), "--rule", "sgd")}
	}
	return s
}

// repeating makes the job repeat lost messages, and in a third of the cases lose some by
// itself.
func (s *spec) repeating(r *rand.Rand) {
	s.resend = true
	s.env = append(s.env, "PS_RESEND=1", "PS_RESEND_TIMEOUT="+strconv.Itoa(200+r.IntN(3)*150))
	if r.IntN(3) == 0 {
		s.drops, s.env = true, append(s.env, "PS_DROP_MSG=1")
	}
}

// whereDropped is by how much jobs are shorter that lose a hundredth of their messages: with
// four servers and three workers that is about one a step, which waits for the resender.
const whereDropped = 8

// bringTogether has the workers of two in three counting jobs that repeat nothing run on one host,
// with values that are large enough to be summed.
func (s *spec) bringTogether(r *rand.Rand) {
	host := r.IntN(hostCount)
	if s.model != "count" || s.resend || r.IntN(3) == 0 {
		return
	}
	s.together = 1 + host
	s.args = append(s.args, "--value-length", "24")
	s.name = s.describe() + fmt.Sprintf(", workers on host%d", host)
}

// shorten divides the number of the job's steps.
func (s *spec) shorten(by int) {
	i := slices.Index(s.args, "--steps") + 1
	if n, err := strconv.Atoi(s.args[i]); i > 0 && err == nil {
		s.args[i] = strconv.Itoa(1 + n/by)
	}
}

// old draws the generation of PS-lite that the job speaks.
func (s *spec) old(r *rand.Rand) (dialect string) {
	dialect = []string{"dmlc", "dmlc", "dmlc-2018", "dmlc-2017"}[r.IntN(4)]
	s.env = append(s.env, "PSJOB_DIALECT="+dialect)
	return dialect
}

// counting makes it a job whose workers count, with favourite keys that wander, so that keys
// move.
func (s *spec) counting(r *rand.Rand) {
	s.model = "count"
	// Favourites make up nearly all uses, and change within the job, so that a planner has
	// something to move, and to move again.
	s.args = []string{"--model", "count", "--count-keys", strconv.Itoa(2000 + r.IntN(8000)), "--count-batch", strconv.Itoa(200 + r.IntN(400)),
		"--count-favourites", strconv.Itoa(620 + r.IntN(400)), "--count-common", "0.05", "--count-wander", strconv.Itoa(500 + r.IntN(500)),
		"--count-compute", fmt.Sprintf("%dms", 10+r.IntN(20)), "--steps", strconv.Itoa(500 + r.IntN(1500)), "--seed", strconv.Itoa(1 + r.IntN(1000))}
	switch r.IntN(4) {
	case 0:
		s.args = append(s.args, "--count-lens")
	case 1:
		s.args = append(s.args, "--value-length", strconv.Itoa(2+r.IntN(7)))
	}
	if dialect := s.old(r); dialect == "dmlc" && r.IntN(3) == 0 {
		s.args = append(s.args, "--count-pushpull")
	}
	if s.async {
		s.args = append(s.args, "--async")
	}
}

// mixing makes it a job that uses at once all that PS-lite's clients can do.
func (s *spec) mixing(r *rand.Rand) {
	s.model, s.async = "mix", false
	s.args = []string{"--model", "mix", "--steps", strconv.Itoa(100 + r.IntN(300)), "--mix-longest", strconv.Itoa(1 << (6 + r.IntN(7)))}
}

// peers makes it a job of the C++ peer, which is PS-lite's own code and repeats nothing.
func (s *spec) peers(r *rand.Rand) {
	s.model, s.resend, s.drops, s.async, s.env = "peer", false, false, false, nil
	s.args = []string{"--keys", strconv.Itoa(100 + r.IntN(300)), "--space", "1000", "--shift", "7", "--rounds", strconv.Itoa(1500 + r.IntN(3000))}
	switch r.IntN(4) {
	case 0:
		s.args = append(s.args, "--lens")
	case 1:
		s.args = append(s.args, "--width", "3")
	case 2:
		s.args = append(s.args, "--pushpull")
	}
}

// patterned makes it a job of a pattern of test/matrix, of those whose nodes are each in a process.
func (s *spec) patterned(r *rand.Rand) {
	all := slices.DeleteFunc(pattern.All(), func(p *pattern.Pattern) bool {
		return p.ServersEach > 1 || p.WorkersEach > 1 || p.Apart || p.Left > 0 || p.Keys[0].Width > 1000
	})
	p := all[r.IntN(len(all))]
	s.model, s.servers, s.workers, s.env = "pattern", p.Servers, p.Workers, p.Env
	s.resend, s.drops, s.async = p.Resends(), p.Resends(), false
	s.args = []string{"--pattern", p.Name, "--exact", "--pause", fmt.Sprintf("%dms", 10+r.IntN(20)), "--steps", strconv.Itoa(300 + r.IntN(700))}
}

// trained makes it a job that learns something.
func (s *spec) trained(r *rand.Rand) {
	steps := func(n int) []string { return []string{"--steps", strconv.Itoa(n + r.IntN(n))} }
	switch r.IntN(5) {
	case 0:
		s.model, s.args = "lr", append([]string{"--model", "lr", "--data", texts, "--batch", "8"}, steps(600)...)
	case 1:
		s.model, s.args = "lr", append([]string{"--model", "lr", "--data", texts, "--batch", "8", "--rule", "sgd"}, steps(600)...)
	case 2:
		s.model, s.args = "fm", append([]string{"--model", "fm", "--data", texts, "--batch", "8", "--factors", "4"}, steps(500)...)
	case 3:
		// Without barriers its loss after so few steps is anything from 0.15 to
		// 0.55 without psidecar too, as one worker is faster than another.
		s.model, s.args, s.async = "dlrm", dlrm(steps(400)...), false
	default:
		s.model, s.args = "mlp", append([]string{"--model", "mlp", "--data", pictures, "--batch", "4", "--hidden", "16", "--momentum", "0.5"}, steps(400)...)
	}
	s.old(r)
	if s.async {
		s.args = append(s.args, "--async")
	}
}

// dlrm returns the arguments of a small recommender.
func dlrm(more ...string) []string {
	return append([]string{"--model", "dlrm", "--data", clicks, "--batch", "8", "--embedding", "4", "--bottom", "8", "--top", "8", "--buckets", "500"}, more...)
}

// describe returns the job in a few words.
func (s spec) describe() string {
	text := fmt.Sprintf("%s, %d servers, %d workers", s.model, s.servers, s.workers)
	for _, x := range []struct {
		on   bool
		name string
	}{{s.async, "async"}, {s.ipv6, "IPv6"}} {
		if x.on {
			text += ", " + x.name
		}
	}
	for _, v := range s.env {
		text += ", " + v
	}
	for i, a := range s.args {
		switch a {
		case "--pattern":
			text += ": " + s.args[i+1]
		case "--count-lens", "--lens", "--pushpull", "--count-pushpull", "--width", "--value-length", "--rule":
			text += ", " + a[2:]
		}
	}
	return text
}
