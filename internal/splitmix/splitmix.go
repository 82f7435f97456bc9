// Package splitmix has SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): bijections of 64-bit words in
// which every bit of the input affects every bit of the result. Plans, keys and recordings depend on its values.
package splitmix

// Golden is 2^64 divided by the golden ratio, by which the generator's state is incremented.
const Golden = 0x9e3779b97f4a7c15

// Next returns the generator's output after state x: Mix(x + Golden).
func Next(x uint64) uint64 { return Mix(x + Golden) }

// Mix is the finalizer, of which 0 is a fixed point.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
