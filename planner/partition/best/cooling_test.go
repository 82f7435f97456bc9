package best

import (
	"math"
	"testing"
)

// TestCoolingFollowsWishes cools a system whose wishes rise with the
// temperature and lag behind it: their share falls with the time, not the
// temperature at a fixed rate, and the temperature never rises.
func TestCoolingFollowsWishes(t *testing.T) {
	for name, melts := range map[string]float64{"early": 50, "late": 5} {
		c := cooling{hot: 100, cool: 1. / 40, byWish: true}
		wish, last := 0.0, math.Inf(1)
		for i := range 200 {
			x := float64(i) / 200
			temp := c.next(x, wish)
			if temp > last {
				t.Fatalf("%s: the temperature rises from %v to %v", name, last, temp)
			}
			last = temp
			wish += (1/(1+math.Pow(melts/temp, 4)) - wish) / 2
			if i > 60 && i < 190 && math.Abs(wish-c.wished*(1-x)) > 0.12 {
				t.Errorf("%s: at %.2f of the time %.3f wish to move, want %.3f", name, x, wish, c.wished*(1-x))
			}
		}
	}
}

func TestCoolingAtAFixedRate(t *testing.T) {
	c := cooling{hot: 8, cool: 0.25, last: true}
	for x, want := range map[float64]float64{0: 8, 0.5: 4, 0.99: 8 * math.Pow(0.25, 0.99) * quench} {
		if got := c.next(x, 1); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %.2f of the time the temperature is %v, want %v", x, got, want)
		}
	}
}
