package sampler

import (
	"crypto/subtle"
	"encoding/binary"
	"math/bits"
)

// The constants of mt19937: Matsumoto and Nishimura, "Mersenne Twister: A 623-Dimensionally Equidistributed Uniform
// Pseudo-Random Number Generator" (1998).
const (
	mtWords  = 624
	mtMiddle = 397
	mtMatrix = 0x9908b0df
	mtUpper  = 1 << 31
	mtDegree = 19937 // bits of the state: the upper bit of its first word, and all bits of the other words
)

// An mtState is mtWords words of mt19937, one after the other and not yet tempered.
type mtState [mtWords]uint32

// seedState is the state after init_genrand(seed).
func seedState(seed uint32) *mtState {
	x := &mtState{seed}
	for i := 1; i < len(x); i++ {
		x[i] = 1812433253*(x[i-1]^x[i-1]>>30) + uint32(i)
	}
	return x
}

func extend(x []uint32) {
	for i := range x[mtWords:] {
		y := x[i]&mtUpper | x[i+1]&^mtUpper
		x[i+mtWords] = x[i+mtMiddle] ^ y>>1 ^ -(y&1)&mtMatrix
	}
}

func temper(y uint32) uint32 {
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// statesPerJump is about how many states skip makes in the time of a jump.
const statesPerJump = 4096

// skip returns the n-th block after this one.
func (x *mtState) skip(n uint64) *mtState {
	var words [2 * mtWords]uint32
	copy(words[mtWords:], x[:])
	for range n {
		copy(words[:], words[mtWords:])
		extend(words[:])
	}
	b := mtState(words[mtWords:])
	return &b
}

// jump returns the n-th block after this one, in about the same time for any n: Haramoto, Matsumoto, Nishimura, Panneton and L'Ecuyer, "Efficient
// Jump Ahead for F2-Linear Random Number Generators" (2008). The words are linear over GF(2) in the state, so its characteristic polynomial
// annihilates their sequence, and those J further on are the sum of those i further on, over the terms t^i of t^J modulo that polynomial.
//
// It must not be called on what seeded returns: the lower 31 bits of the first word there are in no state. Any later word is
// whole in the state before it.
func (x *mtState) jump(n uint64) *mtState {
	var words [mtDegree - 1 + mtWords]uint32
	copy(words[:], x[:])
	extend(words[:])
	from, _ := binary.Append(nil, binary.LittleEndian, words[:])
	var sum [4 * mtWords]byte
	for i, w := range power(n) {
		for ; w != 0; w &= w - 1 {
			at := 4 * (64*i + bits.TrailingZeros64(w))
			subtle.XORBytes(sum[:], sum[:], from[at:])
		}
	}
	b := new(mtState)
	binary.Decode(sum[:], binary.LittleEndian, b)
	return b
}

// characteristic lists the exponents of mt19937's characteristic polynomial, except the greatest, which is mtDegree. By the appendix of the paper
// it is v u^31 + a_0 v u^30 + a_1 v u^29 + … + a_30 v + a_31, where v is t^624 + t^397, u is t^623 + t^396 and a_i is bit i of mtMatrix.
var characteristic = func() []int {
	exponents := []int{0}
	for k := range 32 {
		if k < 31 && uint32(mtMatrix)>>(30-k)&1 == 0 {
			continue
		}
		for j := range k + 2 { // v u^k is t^(397+396k) (1 + t^227)^(k+1)
			if j&^(k+1) == 0 { // C(k+1, j) is odd, by Lucas
				exponents = append(exponents, 397+396*k+227*j)
			}
		}
	}
	return exponents[:len(exponents)-1]
}()

// A polynomial over GF(2) has the coefficient of t^i in bit i%64 of word i/64. It has room for a product, and a word to spare for add.
type polynomial [(2*mtDegree+mtWords)/64 + 2]uint64

// add adds w t^at.
func (p *polynomial) add(w uint64, at int) {
	i, shift := uint(at)/64, uint(at)%64
	p[i] ^= w << shift
	p[i+1] ^= w >> (64 - shift)
}

// power is t^(mtWords*n) modulo the characteristic polynomial.
func power(n uint64) []uint64 {
	const word, bit = mtDegree / 64, mtDegree % 64
	p := polynomial{1}
	for i := bits.Len64(n) - 1; i >= 0; i-- {
		var q polynomial
		shift := mtWords * int(n>>i&1)
		for j, w := range p[:word+1] {
			q.add(spread(uint32(w)), 128*j+shift)
			q.add(spread(uint32(w>>32)), 128*j+64+shift)
		}
		for j := len(q) - word - 2; j >= 0; j-- { // 64 terms at once: the gap of 623 below t^mtDegree allows that
			if w := q[j+word]>>bit | q[j+word+1]<<(64-bit); w != 0 {
				for _, e := range characteristic {
					q.add(w, 64*j+e)
				}
			}
		}
		q[word] &= 1<<bit - 1
		p = q
	}
	return p[:word+1]
}

// spread moves bit i to bit 2i: over GF(2), that squares.
func spread(w uint32) uint64 {
	x := uint64(w)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	x = (x | x<<2) & 0x3333333333333333
	return (x | x<<1) & 0x5555555555555555
}
