package page

import "math"

// CountError returns by how much a count may be wrong that was scaled up because
// the keys of some requests only were looked at: 19 times in 20 it is within so
// much, where uses of the key are spread over the job's steps by chance (it is
// less where every step uses it, more where it comes in bursts). How many requests
// there were is known, so it is also known how far off the scaling is for all. A
// request that stands for n adds n (n - 1) to the variance of what it is counted
// for, however the others were chosen; those for which none stands add one each.
func (s *JobSampling) CountError(count float64) float64 { return s.errorOf(count, 1) }

// UsesError is CountError of a key's pulls and pushes together. A step pulls and
// pushes the same keys as a rule, and both are looked at or neither, so that they
// are no better known than those of either kind alone, each counted for two.
func (s *JobSampling) UsesError(pulls, pushes float64) float64 {
	return s.errorOf(pulls+pushes, (pulls+pushes)/max(pulls, pushes, 1))
}

// errorOf is CountError for uses that come in groups of that many.
func (s *JobSampling) errorOf(count, together float64) float64 {
	if s.Sampled == 0 || s.Requests <= s.Sampled || count <= 0 {
		return 0
	}
	stand := float64(max(s.Estimated, 1))
	off := math.Abs(float64(s.Requests) - stand)
	return 1.96*math.Sqrt(count*together*(float64(s.Spread)+off)/stand) + count*off/stand
}
