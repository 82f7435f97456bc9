package dynamic

import "math"

// rates are how much each machine uses each item: a short list of users for
// each item, in one arena. All fade together, by one factor: how much an item is
// used is a matter of time. Whose part of it is how large is a matter of uses:
// the last ones count, however long they took, so that hot items follow their
// users at once and cold ones do not follow chance.
type rates struct {
	scale   float64 // bytes a step = rate x scale
	seen    []sight // by item
	start   []int64 // by item, into arena
	length  []uint16
	room    []uint16
	arena   []user
	scratch []uint8
}

// A sight is what an item's users were seen to do.
type sight struct {
	uses float32 // that their parts rest upon, at most evidence
	run  float32 // the last of them, all by one machine
	by   int32   // that machine
}

// A user is a machine that uses an item.
type user struct {
	machine int32
	rate    float32
}

// appendItem makes room for one more item.
func (r *rates) appendItem() {
	r.start, r.length, r.room, r.seen = append(r.start, 0), append(r.length, 0), append(r.room, 0), append(r.seen, sight{})
}

// of returns the users of an item, by machine.
func (r *rates) of(item int32) []user {
	return r.arena[r.start[item] : r.start[item]+int64(r.length[item])]
}

// at returns the rate of one machine.
func (r *rates) at(item, machine int32) float64 {
	for _, u := range r.of(item) {
		if u.machine == machine {
			return float64(u.rate)
		}
	}
	return 0
}

// part returns which part of an item's uses are one machine's.
func (r *rates) part(item, machine int32) float64 {
	sum := 0.0
	for _, u := range r.of(item) {
		sum += float64(u.rate)
	}
	if sum == 0 {
		return 0
	}
	return r.at(item, machine) / sum
}

// use takes in what an item's users, given by machine, moved in an epoch: the
// item's rate grows by bytes x weight, and its users' parts of it become those of
// the uses remembered and of the new ones, of so many bytes each; machines that
// were not heard have none. It calls changed with what each rate has grown by.
func (r *rates) use(item int32, uses []Use, heard []bool, weight, each float64, changed func(machine int32, by float64)) {
	at, bytes, seen := int32(0), 0.0, 0.0 // users are by machine too
	users := r.of(item)
	for _, u := range uses {
		for at < int32(len(users)) && users[at].machine < u.Machine {
			at++
		}
		if at == int32(len(users)) || users[at].machine != u.Machine {
			users = r.insert(item, at, u.Machine, len(uses))
		}
		bytes += float64(u.Bytes)
		if heard == nil || heard[u.Machine] {
			seen += float64(u.Bytes)
		}
	}
	before, sole := 0.0, 0.0
	for _, u := range users {
		before += float64(u.rate)
		if u.machine == uses[0].Machine {
			sole = float64(u.rate)
		}
	}
	if before > 0 {
		sole /= before
	}
	part := r.seen[item].look(sole, seen/each, uses)
	old, fresh := 0.0, (before+bytes*weight)*part/bytes
	if before > 0 {
		old = (before + bytes*weight) * (1 - part) / before
	}
	next := 0
	for i := range users {
		u := &users[i]
		rate := old * float64(u.rate)
		if next < len(uses) && uses[next].Machine == u.machine {
			rate += fresh * float64(uses[next].Bytes)
			next++
		}
		was := u.rate
		u.rate = float32(rate)
		changed(u.machine, float64(u.rate)-float64(was))
	}
}

const (
	// evidence is how many uses of an item are remembered.
	evidence = 16
	// unlikely is what ends an item's past: uses by one machine alone that have
	// this chance, or less, if its part were as it was.
	unlikely = 0.05
	// doubtful is how many uses more a machine may have made than were seen.
	doubtful = 0.25
)

// look records uses and returns their weight in the estimate: 1 where all earlier
// ones are forgotten. That is so where it is unlikely that the first of the
// machines, which had a part of what was seen, makes so many uses and no other any:
// the item is another one's now.
func (s *sight) look(had, now float64, uses []Use) float64 {
	switch {
	case now == 0: // nothing is new
		if s.uses == 0 {
			return 1
		}
	case len(uses) > 1:
		s.run = 0
	case s.run == 0 || s.by != uses[0].Machine:
		s.run, s.by = 0, uses[0].Machine
		fallthrough
	default:
		run, seen := float64(s.run), float64(s.uses)
		s.run = float32(min(run+now, evidence))
		others := max(seen-run, 0) // before the run
		if others > 0 && math.Pow((max(had*seen-run, 0)+doubtful)/(others+1), run+now) < unlikely {
			s.uses = s.run
			return 1
		}
	}
	part := now / (float64(s.uses) + now)
	s.uses = float32(min(float64(s.uses)+now, evidence))
	return part
}

// insert makes a machine a user, at a place, and returns all users. Bound of the
// items of one call.
func (r *rates) insert(item, at, machine int32, come int) []user {
	if r.length[item] == r.room[item] {
		r.grow(item, come)
	}
	r.length[item]++
	users := r.of(item)
	copy(users[at+1:], users[at:])
	users[at] = user{machine: machine}
	return users
}

// grow doubles an item's room, at the arena's end, or makes room for as many
// as come.
func (r *rates) grow(item int32, come int) {
	room := min(max(2*int(r.room[item]), come), math.MaxUint16)
	old := r.of(item)
	r.start[item], r.room[item] = int64(len(r.arena)), uint16(room)
	r.arena = append(r.arena, old...)
	r.arena = append(r.arena, make([]user, room-len(old))...)
}

const (
	// least is the part of an item's rates below which a user is forgotten.
	least = 1. / 1024
	// faint is the rate below which all users of an item are: no machine has used
	// it for some 70 times the length of the memory, and its rates would soon be
	// too small to be exact.
	faint = 1e-30
)

// fade makes all that was seen count less, and reports whether all rates were
// written again, with scale 1. That happens seldom.
func (r *rates) fade(keep float64) bool {
	if r.scale *= keep; r.scale > 1e-12 {
		return false
	}
	for i := range r.arena {
		r.arena[i].rate *= float32(r.scale)
	}
	r.scale = 1
	r.compact()
	return true
}

// compact drops users that have not used an item for long, and closes gaps.
func (r *rates) compact() {
	arena := make([]user, 0, len(r.arena)/2)
	for item := range r.start {
		users := r.of(int32(item))
		sum := float32(0)
		for _, u := range users {
			sum += u.rate
		}
		r.start[item] = int64(len(arena))
		for _, u := range users {
			if sum > faint && u.rate > least*sum {
				arena = append(arena, u)
			}
		}
		n := uint16(len(arena) - int(r.start[item]))
		r.length[item], r.room[item] = n, n
	}
	r.arena = arena
}
