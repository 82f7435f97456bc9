package matrix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func random(r *rand.Rand, n int, zeros bool) []float32 {
	list := make([]float32, n)
	for i := range list {
		if zeros && r.IntN(2) == 0 {
			continue
		}
		list[i] = float32(r.NormFloat64())
	}
	return list
}

// near fails unless got is want but for rounding.
func near(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= 1e-4*(1+math.Abs(want[i]))) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// All products must equal the definition, in shapes with and without tails and
// with the derivatives' zeros that ReLUs leave.
func TestProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 2, 5}, {4, 4, 16}, {5, 7, 33}, {32, 10, 367}, {9, 64, 15}, {8, 3, 48}} {
		rows, outs, ins := shape[0], shape[1], shape[2]
		t.Run(fmt.Sprint(shape), func(t *testing.T) {
			x, w, bias, d := random(r, rows*ins, false), random(r, outs*ins, false), random(r, outs, false), random(r, rows*outs, true)
			y, gw, gb, dx := make([]float32, rows*outs), random(r, outs*ins, false), random(r, outs, false), random(r, rows*ins, false)
			wantY, wantGW, wantGB, wantDX := make([]float64, rows*outs), wide(gw), wide(gb), wide(dx)
			for i := range rows {
				for o := range outs {
					f := float64(d[i*outs+o])
					wantY[i*outs+o] = float64(bias[o])
					wantGB[o] += f
					for c := range ins {
						wantY[i*outs+o] += float64(x[i*ins+c]) * float64(w[o*ins+c])
						wantGW[o*ins+c] += f * float64(x[i*ins+c])
						wantDX[i*ins+c] += f * float64(w[o*ins+c])
					}
				}
			}
			Outputs(y, x, w, bias, ins)
			AddWeights(gw, gb, d, x, ins)
			AddInputs(dx, d, w, outs, ins)
			near(t, "outputs", y, wantY)
			near(t, "weights", gw, wantGW)
			near(t, "biases", gb, wantGB)
			near(t, "inputs", dx, wantDX)
		})
	}
}

func wide(list []float32) []float64 {
	w := make([]float64, len(list))
	for i, v := range list {
		w[i] = float64(v)
	}
	return w
}

// BenchmarkLayer is a layer of 512 units on 367 inputs, forth and back, for a
// batch of 32; bytes are the multiplications and additions, so MB/s are Mflop/s.
func BenchmarkLayer(b *testing.B) {
	const rows, outs, ins = 32, 512, 367
	r := rand.New(rand.NewPCG(1, 2))
	x, w, bias, d := random(r, rows*ins, false), random(r, outs*ins, false), random(r, outs, false), random(r, rows*outs, false)
	y, gw, gb, dx := make([]float32, rows*outs), make([]float32, outs*ins), make([]float32, outs), make([]float32, rows*ins)
	b.ReportAllocs()
	b.SetBytes(6 * rows * outs * ins)
	for b.Loop() {
		Outputs(y, x, w, bias, ins)
		AddWeights(gw, gb, d, x, ins)
		AddInputs(dx, d, w, outs, ins)
	}
}
