//! `Pages` on the running kernel.
#![cfg(target_os = "linux")]
use hugeheap_os::linux::Linux;
use hugeheap_os::*;
const H: usize = 2 << 20;
#[test]
fn quick() {
    let os = Linux::new();
    let r = os.reserve(16 * H, H).unwrap();
    assert!(r.is_aligned_to(H));
    unsafe {
        let a = AddressRange::new(r.start, H);
        let b = AddressRange::new(r.start + 4 * H, H);
        os.map(a, Backing::Thp).unwrap();
        os.populate(a).unwrap();
        eprintln!("{:?}", os.residency(r));
        *(a.start as *mut u64) = 77;
        os.relocate(a, b).unwrap();
        eprintln!("{:?} {:?}", os.residency(a), os.residency(b));
        assert_eq!(*(b.start as *mut u64), 77);
        std::fs::write("/proc/sys/vm/nr_hugepages", "4").unwrap();
        let c = AddressRange::new(r.start + 6 * H, 2 * H);
        let e = os.map(c, Backing::Hugetlb(H));
        eprintln!("{e:?} {:?}", os.residency(r));
        let d = AddressRange::new(r.start + 8 * H, 3 * H);
        eprintln!("{:?}", os.map(d, Backing::Hugetlb(H)));
        os.unmap(c).unwrap();
        eprintln!("{:?}", os.residency(r));
        os.map(d, Backing::Hugetlb(H)).unwrap();
        os.unmap(d).unwrap();
        std::fs::write("/proc/sys/vm/nr_hugepages", "0").unwrap();
        os.map(c, Backing::Base).unwrap();
        os.populate(c).unwrap();
        eprintln!("{:?}", os.residency(c));
        eprintln!("{:?}", os.collapse(c));
        os.advise(c, Advice::Huge).unwrap();
        eprintln!("{:?}", os.collapse(c));
        eprintln!("{:?}", os.residency(c));
        eprintln!("{:?}", os.name(c, c"x"));
        os.release(r).unwrap();
    }
}
