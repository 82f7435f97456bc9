package dynamic

import "math"

// rates are how much each machine uses each item: a short list of users for
// each item, in one arena. All fade together, by one factor.
type rates struct {
	scale   float64 // bytes a step = rate x scale
	start   []int64 // by item, into arena
	length  []uint16
	room    []uint16
	arena   []user
	scratch []uint8
}

// A user is a machine that uses an item.
type user struct {
	machine int32
	rate    float32
}

// add makes room for one more item.
func (r *rates) add() {
	r.start, r.length, r.room = append(r.start, 0), append(r.length, 0), append(r.room, 0)
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

// use adds to the rates of an item's users, given by machine, bytes x weight
// each. It calls changed with what each rate has grown by.
func (r *rates) use(item int32, uses []Use, weight float64, changed func(machine int32, by float64)) {
	at := int32(0) // users are by machine too
	for _, u := range uses {
		users := r.of(item)
		for at < int32(len(users)) && users[at].machine < u.Machine {
			at++
		}
		if at == int32(len(users)) || users[at].machine != u.Machine {
			users = r.insert(item, at, u.Machine, len(uses))
		}
		before := users[at].rate
		users[at].rate += float32(float64(u.Bytes) * weight)
		changed(u.Machine, float64(users[at].rate)-float64(before))
		at++
	}
}

// insert makes a machine a user, at a place, and returns all users. So many
// may come at a time.
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

// least is the part of an item's rates below which a user is forgotten.
const least = 1. / 1024

// fade makes all that was seen count less, and reports whether all rates were
// written anew, with scale 1. That happens seldom.
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

// compact forgets those who have not used an item for long, and closes gaps.
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
			if u.rate > least*sum {
				arena = append(arena, u)
			}
		}
		n := uint16(len(arena) - int(r.start[item]))
		r.length[item], r.room[item] = n, n
	}
	r.arena = arena
}
