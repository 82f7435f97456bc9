package pattern

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// size is how many bytes a number of a kind takes in a pull.
func (k Kind) size() int {
	switch k {
	case Float16:
		return 2
	case Float64, Int64:
		return 8
	}
	return 4
}

// Pulled is how many bytes the value takes in a pull.
func (k *Key) Pulled() int { return k.Width * k.Kind.size() }

// pushed is how many bytes it takes in a push.
func (k *Key) pushed() int {
	if k.Kind == TwoBit {
		return (k.Width + 3) / 4
	}
	return k.Pulled()
}

// put appends numbers as a value.
func (k Kind) put(dst []byte, numbers []float64) []byte {
	for _, v := range numbers {
		switch k {
		case Float32, TwoBit:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
		case Float64:
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
		case Float16:
			dst = append(dst, 0, 0)
			element.Float16.Put(dst[len(dst)-2:], 0, v)
		case Int32:
			dst = binary.LittleEndian.AppendUint32(dst, uint32(int32(v)))
		case Int64:
			dst = binary.LittleEndian.AppendUint64(dst, uint64(int64(v)))
		}
	}
	return dst
}

// encode appends what is pushed of a key. Of two bits, 3 stands for 1, 2 for -1 and 0 for nothing.
func (k *Key) encode(dst []byte, numbers []float64) []byte {
	if k.Kind != TwoBit {
		return k.Kind.put(dst, numbers)
	}
	at := len(dst)
	dst = append(dst, make([]byte, k.pushed())...)
	for i, v := range numbers {
		code := byte(0)
		switch {
		case v > 0:
			code = 3
		case v < 0:
			code = 2
		}
		dst[at+i/4] |= code << (6 - 2*(i%4))
	}
	return dst
}

// Numbers reads a value of a kind, as it is pulled.
func (k Kind) Numbers(src []byte) (numbers []float64) {
	for n := k.size(); len(src) >= n; src = src[n:] {
		switch k {
		case Float32, TwoBit:
			numbers = append(numbers, float64(math.Float32frombits(binary.LittleEndian.Uint32(src))))
		case Float64:
			numbers = append(numbers, math.Float64frombits(binary.LittleEndian.Uint64(src)))
		case Float16:
			numbers = append(numbers, element.Float16.At(src, 0))
		case Int32:
			numbers = append(numbers, float64(int32(binary.LittleEndian.Uint32(src))))
		case Int64:
			numbers = append(numbers, float64(int64(binary.LittleEndian.Uint64(src))))
		}
	}
	return numbers
}

// decode reads what was pushed of a key.
func (k *Key) decode(src []byte) (numbers []float64) {
	if k.Kind != TwoBit {
		return k.Kind.Numbers(src)
	}
	for i := range k.Width {
		switch src[i/4] >> (6 - 2*(i%4)) & 3 {
		case 3:
			numbers = append(numbers, 1)
		case 2:
			numbers = append(numbers, -1)
		default:
			numbers = append(numbers, 0)
		}
	}
	return numbers
}

// slot names a value of a server.
type slot struct {
	app, table int32
	key        uint64
}

// stored is a value of a server. Sums of 16 bits are rounded when they are pulled.
type stored struct {
	value  []float64
	z, n   []float32 // FTRL's
	pushes int
}

// store is what a server has.
type store struct {
	handler Handler
	values  map[slot]*stored
}

func newStore(h Handler) *store { return &store{handler: h, values: map[slot]*stored{}} }

func (s *store) at(k *Key) *stored {
	at := slot{k.App, k.Table, k.Key}
	v := s.values[at]
	if v == nil {
		v = &stored{}
		s.values[at] = v
	}
	return v
}

// push applies what was pushed of a key.
func (s *store) push(k *Key, numbers []float64) error {
	v := s.at(k)
	if v.value == nil {
		v.value = make([]float64, len(numbers))
		v.z, v.n = make([]float32, len(numbers)), make([]float32, len(numbers))
	}
	if len(v.value) != len(numbers) {
		return fmt.Errorf("key %d has %d numbers, pushed are %d", k.Key, len(v.value), len(numbers))
	}
	v.pushes++
	for i, x := range numbers {
		switch {
		case s.handler == Assign:
			v.value[i] = x
		case s.handler == Count && i == 0:
			v.value[i] = float64(v.pushes)
		case s.handler == FTRL:
			v.ftrl(i, float32(x))
		case k.Kind == Float32 || k.Kind == TwoBit:
			v.value[i] = float64(float32(v.value[i]) + float32(x))
		default:
			v.value[i] += x
		}
	}
	return nil
}

// ftrl is Algorithm 1 of McMahan et al. 2013 with alpha 0.1, beta 1 and without regularization.
func (v *stored) ftrl(i int, gradient float32) {
	const alpha, beta = 0.1, 1
	g, squares := float64(gradient), float64(v.n[i])
	sigma := (math.Sqrt(squares+g*g) - math.Sqrt(squares)) / alpha
	v.z[i] = float32(float64(v.z[i]) + g - sigma*v.value[i])
	v.n[i] = float32(squares + g*g)
	v.value[i] = float64(float32(-float64(v.z[i]) * alpha / (beta + math.Sqrt(float64(v.n[i])))))
}

// pull appends the value of a key, zeros where nobody has pushed it.
func (s *store) pull(k *Key, dst []byte) []byte {
	v := s.values[slot{k.App, k.Table, k.Key}]
	if v == nil || v.value == nil {
		return append(dst, make([]byte, k.Pulled())...)
	}
	return k.Kind.put(dst, v.value)
}

// numbers returns what a worker pushes of a key in a round.
func (p *Pattern) numbers(worker, round, key int) []float64 {
	all := make([]float64, p.Keys[key].Width)
	for i := range all {
		all[i] = p.value(worker, round, key, i)
	}
	return all
}

// mine reports whether a worker uses a key.
func (p *Pattern) mine(worker, key int) bool {
	w := p.Keys[key].Worker
	return w < 0 || w == worker
}

// Expect returns the values of all keys, after the workers made so many rounds, by rank.
func (p *Pattern) Expect(rounds []int) (all [][]byte, err error) {
	s := newStore(p.Handler)
	for worker, n := range rounds {
		for round := range n {
			for _, r := range p.Requests {
				for _, key := range r {
					if k := &p.Keys[key]; p.mine(worker, key) && !k.Unused {
						if err := s.push(k, k.decode(k.encode(nil, p.numbers(worker, round, key)))); err != nil {
							return nil, err
						}
					}
				}
			}
		}
	}
	for i := range p.Keys {
		all = append(all, s.pull(&p.Keys[i], nil))
	}
	return all, nil
}

// numberSize is how many bytes a length counts by.
func numberSize(k *Key) int {
	if k.Type == pslite.Char {
		return 1
	}
	return k.Kind.size()
}

func (p *Pattern) bytesOfLength(k *Key, lens []byte, i int) int {
	return int(binary.LittleEndian.Uint32(lens[4*i:])) * numberSize(k)
}

func (p *Pattern) length(k *Key, n int) int { return n / numberSize(k) }
