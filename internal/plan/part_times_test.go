package plan

import (
	"math"
	"math/rand/v2"
	"testing"
)

// search measures by a curve, and returns the number of parts that was found.
func search(servers, most int, curve func(p int) float64) (found int, s *PartSearch) {
	s = NewPartSearch(servers, most)
	for {
		p, ok := s.Next()
		if !ok {
			break
		}
		s.Measured(curve(p))
	}
	found, _ = s.Result()
	return found, s
}

// least is the shortest step by trying all numbers of parts.
func least(most int, curve func(p int) float64) float64 {
	best := math.Inf(1)
	for p := 1; p <= most; p++ {
		best = min(best, curve(p))
	}
	return best
}

// curves are made ones: of the paper's form, with stairs where parts do not divide evenly
// among servers, and with a bend where processors are all busy.
func curves(rng *rand.Rand) (servers, most int, all map[string]func(p int) float64) {
	servers, most = 1+rng.IntN(16), []int{1, 3, 64, 1000, 4096}[rng.IntN(5)]
	theta0, theta1 := 0.01+rng.Float64(), math.Pow(10, -2+4*rng.Float64())
	optimum := math.Pow(10, 3.3*rng.Float64())
	theta2 := theta1 / optimum / optimum
	paper := func(p int) float64 { return theta0 + theta1/float64(p) + theta2*float64(p) }
	cores := servers * (1 + rng.IntN(8))
	return servers, most, map[string]func(p int) float64{
		"paper": paper,
		"falls": func(p int) float64 { return theta0 + theta1/float64(p) },
		"rises": func(p int) float64 { return theta0 + theta2*float64(p) },
		"flat":  func(int) float64 { return theta0 },
		"bend": func(p int) float64 {
			return theta0 + theta1/float64(min(p, cores)) + theta2*float64(p)
		},
	}
}

// Steps with the number of parts that was found take at most 5% longer than with the best
// by trying all, in at most 8 samples.
func TestSearchBesideBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	worst, most := map[string]float64{}, 0
	for range 800 {
		servers, bound, all := curves(rng)
		for name, curve := range all {
			found, s := search(servers, bound, curve)
			if found < 1 || found > bound {
				t.Fatalf("%s: %d parts, of at most %d", name, found, bound)
			}
			ratio := curve(found) / least(bound, curve)
			worst[name], most = max(worst[name], ratio), max(most, len(s.Samples()))
			if ratio > 1.05 && name != "bend" {
				t.Fatalf("%s, %d servers, at most %d parts: %d parts take %.3f times the least, after %v", name, servers, bound, found, ratio, s.Samples())
			}
		}
	}
	t.Logf("worst: %v; %d samples", worst, most)
	if most > MaxPartSamples {
		t.Errorf("%d samples", most)
	}
}

// The fit has the theta that samples were made of, and none below 0.
func TestFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		want := [3]float64{rng.Float64(), 100 * rng.Float64(), 0.001 * rng.Float64()}
		f := PartFit{Theta: want}
		var samples []PartSample
		for _, p := range []int{4, 8, 16, 32, 64} {
			samples = append(samples, PartSample{p, f.At(p)})
		}
		got := FitParts(samples)
		for i := range want {
			if math.Abs(got.Theta[i]-want[i]) > 1e-4*(want[i]+1e-3) {
				t.Fatalf("theta %v, want %v; error %g", got.Theta, want, got.Error)
			}
		}
		for i := range samples {
			samples[i].Seconds *= 0.5 + rng.Float64()
		}
		got = FitParts(samples)
		for _, th := range got.Theta {
			if th < 0 {
				t.Fatalf("theta %v of %v", got.Theta, samples)
			}
		}
		// No theta nearby has a smaller error.
		for range 20 {
			near := got
			for i := range near.Theta {
				near.Theta[i] = max(0, near.Theta[i]*(1+0.02*rng.NormFloat64())+1e-5*rng.NormFloat64())
			}
			if e := near.errorAt(samples); e < got.Error*(1-1e-6) {
				t.Fatalf("theta %v has an error of %g, %v one of %g", got.Theta, got.Error, near.Theta, e)
			}
		}
	}
	if f := FitParts([]PartSample{{8, 2}}); math.Abs(f.At(8)-2) > 1e-9 {
		t.Errorf("of one sample: %+v", f)
	}
	if f := FitParts(nil); f.Theta != [3]float64{} {
		t.Errorf("of none: %+v", f)
	}
}

// Where measured times differ by chance, what is found is not much worse.
func TestSearchWithNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	far := 0
	const runs = 3000
	for range runs {
		servers, bound, all := curves(rng)
		curve := all["paper"]
		found, _ := search(servers, bound, func(p int) float64 { return curve(p) * (1 + 0.01*rng.NormFloat64()) })
		if curve(found)/least(bound, curve) > 1.05 {
			far++
		}
	}
	t.Logf("with 1%% of noise %d of %d are more than 5%% from the least", far, runs)
	if far > runs/20 {
		t.Errorf("%d of %d are more than 5%% from the least", far, runs)
	}
}
