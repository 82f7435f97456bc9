package kv

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// StoreSettings say what a push does. The first worker sends them to the servers as
// JSON when a job starts. Zero numbers take the default beside them.
type StoreSettings struct {
	Rule         string  `json:"rule"`          // one of [StoreRules]
	Synchronous  bool    `json:"synchronous"`   // sum a step's pushes, see the package comment; only for rules that take gradients
	ValueLength  int     `json:"value_length"`  // values of a key that is pulled before it is pushed, default 1
	LearningRate float64 `json:"learning_rate"` // default 0.1
	Beta         float64 `json:"beta"`          // ftrl and adagrad, default 1
	L1           float64 `json:"l1"`            // ftrl
	L2           float64 `json:"l2"`            // sgd and ftrl
	Momentum     float64 `json:"momentum"`      // sgd
	// Doubles says that each two values of a key are the halves of a double, which rule add adds.
	Doubles bool `json:"doubles"`
}

// StoreRules are the names of what a push can do:
//
//   - add: the value is added (PS-lite's example handler).
//   - assign: the first push of a key assigns, later ones add.
//   - sgd: w -= rate * v, where v = Momentum v + g + L2 w.
//   - adagrad: w -= rate * g / (Beta + sqrt(sum of g^2)).
//   - ftrl: FTRL-Proximal (McMahan et al. 2013, Algorithm 1).
func StoreRules() []string { return []string{"add", "assign", "sgd", "adagrad", "ftrl"} }

// Check returns the first fault of the settings.
func (s StoreSettings) Check() error {
	s = s.withDefaults()
	switch {
	case !slices.Contains(StoreRules(), s.Rule):
		return fmt.Errorf("rule %q: want one of %s", s.Rule, strings.Join(StoreRules(), ", "))
	case s.Synchronous && !s.TakesGradients():
		return fmt.Errorf("rule %s has no synchronous form: it applies each push at once", s.Rule)
	case s.ValueLength < 1 || s.ValueLength > MaxValueLength:
		return fmt.Errorf("value length %d: want 1 to %d", s.ValueLength, MaxValueLength)
	case s.Doubles && (s.Rule != "add" || s.ValueLength%2 != 0):
		return fmt.Errorf("rule %s for doubles of %d halves: want add, and an even number", s.Rule, s.ValueLength)
	case !(s.LearningRate > 0) || math.IsInf(s.LearningRate, 0):
		return fmt.Errorf("learning rate %v: want above 0", s.LearningRate)
	case !(s.Momentum >= 0 && s.Momentum < 1) || s.Momentum > 0 && s.Rule != "sgd":
		return fmt.Errorf("momentum %v of the servers, by rule %s: want 0 to below 1, by sgd", s.Momentum, s.Rule)
	case !(s.Beta > 0) || !(s.L1 >= 0) || !(s.L2 >= 0):
		return fmt.Errorf("beta %v, l1 %v, l2 %v: want beta above 0 and the others not below", s.Beta, s.L1, s.L2)
	}
	return nil
}

// TakesGradients reports whether pushes are gradients, rather than differences to
// add.
func (s StoreSettings) TakesGradients() bool { return s.Rule != "add" && s.Rule != "assign" }

// withDefaults fills in the defaults that the fields' comments give.
func (s StoreSettings) withDefaults() StoreSettings {
	if s.ValueLength == 0 {
		s.ValueLength = 1
	}
	if s.LearningRate == 0 {
		s.LearningRate = 0.1
	}
	if s.Beta == 0 {
		s.Beta = 1
	}
	return s
}

// memory returns how many numbers the rule keeps beside each value: a momentum, a sum
// of squares, a mark that a value was assigned, or FTRL's z and n.
func (s StoreSettings) memory() int {
	switch s.Rule {
	case "adagrad", "assign":
		return 1
	case "sgd":
		if s.Momentum > 0 {
			return 1
		}
	case "ftrl":
		return 2
	}
	return 0
}

// update applies pushed values if every key has one value, the case that benchmarks
// measure: the rule's name is looked at once for each request rather than for each
// key.
type update func(s *Store, numbers []uint32, pushed []float32)

// update returns the function for the rule.
func (s StoreSettings) update() update {
	if s.Rule == "add" {
		return func(s *Store, numbers []uint32, pushed []float32) {
			for i, n := range numbers {
				s.values[n] += pushed[i]
			}
		}
	}
	return func(s *Store, numbers []uint32, pushed []float32) {
		for i, n := range numbers {
			s.applyAt(int(n), pushed[i:i+1])
		}
	}
}

// applyRange applies what was pushed for one key.
func (s *Store) applyRange(n uint32, pushed []float32) {
	from, _ := s.span(n)
	s.applyAt(from, pushed)
}

// applyAt applies pushed to the values that begin at from.
func (s *Store) applyAt(from int, pushed []float32) {
	to := from + len(pushed)
	w := s.values[from:to]
	switch s.settings.Rule {
	case "add":
		if s.settings.Doubles {
			for i := 1; i < len(pushed); i += 2 {
				SetDouble(w[i-1:], Double(w[i-1:])+Double(pushed[i-1:]))
			}
			return
		}
		for i, v := range pushed {
			w[i] += v
		}
	// The first push of a key carries its initial values, every further one a
	// difference.
	case "assign":
		for i, v := range pushed {
			if s.first[from+i] == 0 {
				w[i], s.first[from+i] = v, 1
			} else {
				w[i] += v
			}
		}
	case "sgd":
		rate, decay := float32(s.settings.LearningRate), float32(s.settings.L2)
		// Decay is part of what momentum sums up, as in most frameworks.
		if m := float32(s.settings.Momentum); m > 0 {
			v := s.first[from:to]
			for i, g := range pushed {
				v[i] = m*v[i] + g + decay*w[i]
				w[i] -= rate * v[i]
			}
			return
		}
		for i, g := range pushed {
			w[i] -= rate * (g + decay*w[i])
		}
	// The sum of squares grows without end, so each value's step gets smaller by its
	// own history.
	case "adagrad":
		for i, g := range pushed {
			s.first[from+i] += g * g
			root := math.Sqrt(float64(s.first[from+i]))
			w[i] -= float32(s.settings.LearningRate * float64(g) / (s.settings.Beta + root))
		}
	case "ftrl":
		s.ftrl(w, s.first[from:to], s.second[from:to], pushed)
	}
}

// Double returns the double whose halves, in the machine's order, are the first two values.
func Double(halves []float32) float64 {
	return math.Float64frombits(uint64(math.Float32bits(halves[1]))<<32 | uint64(math.Float32bits(halves[0])))
}

// SetDouble is the reverse of Double. Halves are copied as they are: any bits may be a half, a
// signaling NaN's too.
func SetDouble(halves []float32, v float64) {
	bits := math.Float64bits(v)
	halves[0], halves[1] = math.Float32frombits(uint32(bits)), math.Float32frombits(uint32(bits>>32))
}

// ftrl is Algorithm 1 of McMahan et al. 2013, "Ad click prediction: a view from the
// trenches". There the weight is computed when it is needed; here it is stored once
// the gradient is in, so that a pull only copies. Values are float32, the arithmetic
// float64.
func (s *Store) ftrl(w, z, n, gradient []float32) {
	o := s.settings
	for i, g32 := range gradient {
		g, squares := float64(g32), float64(n[i])
		sigma := (math.Sqrt(squares+g*g) - math.Sqrt(squares)) / o.LearningRate
		z[i] = float32(float64(z[i]) + g - sigma*float64(w[i]))
		n[i] = float32(squares + g*g)
		if math.Abs(float64(z[i])) <= o.L1 {
			w[i] = 0
			continue
		}
		sign := math.Copysign(1, float64(z[i]))
		w[i] = float32(-(float64(z[i]) - sign*o.L1) /
			((o.Beta+math.Sqrt(float64(n[i])))/o.LearningRate + o.L2))
	}
}
