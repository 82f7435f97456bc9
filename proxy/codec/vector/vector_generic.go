package vector

// Without assembly nothing is done here and all by the portable code.

func addFloat32([]float32, []byte, float32, []uint64) int     { return 0 }
func addFloat16([]float32, []byte, float32, []uint64) int     { return 0 }
func addBFloat16([]float32, []byte, float32, []uint64) int    { return 0 }
func addFloat64([]float64, []byte, float64, []uint64) int     { return 0 }
func addFloat32To64([]float64, []byte, float64, []uint64) int { return 0 }
func compareFloat32([]float32, float32, []uint64) int         { return 0 }
func compareFloat64([]float64, float64, []uint64) int         { return 0 }
