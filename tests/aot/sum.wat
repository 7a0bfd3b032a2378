;; A module whose exported function spends its time in two functions of its own, one deeper than the other.
(module
  (memory (export "memory") 1)

  ;; Sums the numbers below $n, through memory so that no compiler can do it at once.
  (func $sum_below (param $n i32) (result i32)
    (local $i i32)
    (local $sum i32)
    (loop $again
      (i32.store (i32.and (local.get $i) (i32.const 1020)) (local.get $i))
      (local.set $sum
        (i32.add (local.get $sum) (i32.load (i32.and (local.get $i) (i32.const 1020)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $i) (local.get $n))))
    (local.get $sum))

  (func $sum_of_sums (param $n i32) (result i32)
    (local $sum i32)
    (loop $again
      (local.set $sum (i32.add (local.get $sum) (call $sum_below (i32.const 1000))))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br_if $again (local.get $n)))
    (local.get $sum))

  (func (export "run") (param $n i32) (result i32)
    (i32.add (call $sum_of_sums (local.get $n)) (i32.const 1))))
